"""Scan -> mask -> fragments -> contours."""
