"""Two fragments -> correspondences -> transform."""
