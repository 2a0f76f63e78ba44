"""Comparison of runs: baselines, lower bounds and costs."""
