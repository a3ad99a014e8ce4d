"""Collections that grow for years: fragments are added, removed and searched, without ever touching all pairs."""
