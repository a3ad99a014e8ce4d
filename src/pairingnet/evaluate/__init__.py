"""Metrics, tables and plots. Knows nothing of the methods it judges."""
