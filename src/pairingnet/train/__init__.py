"""Training: one loop, two steps."""
