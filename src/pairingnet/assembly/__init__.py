"""Pair matches -> groups of placed fragments. Begin with `layout.py`; docs/method.md has the formulas."""
