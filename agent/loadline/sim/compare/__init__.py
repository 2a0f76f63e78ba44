"""A run beside others: baselines, bounds, and what they cost."""
