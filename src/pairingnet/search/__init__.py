"""Features -> ranked candidates."""
