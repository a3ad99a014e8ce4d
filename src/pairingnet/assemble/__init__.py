"""Poses -> canvas."""
