"""Counts of workers by the profiles of their engines."""
