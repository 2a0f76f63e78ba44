"""Counts of workers, each of them a queue."""
