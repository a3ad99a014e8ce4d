"""Tears pictures into fragments with exact truth."""
