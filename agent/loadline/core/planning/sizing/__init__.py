"""Sizing of pools: worker counts from demand, engines and observed load."""
