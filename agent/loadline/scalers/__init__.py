"""Scalers: programs that carry out decisions."""
