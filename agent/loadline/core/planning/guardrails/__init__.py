"""Limits on every proposal, whatever the planner recommends."""
