"""Slow measurements behind docs/results.md. Each module is a command; none is run by the tests."""
