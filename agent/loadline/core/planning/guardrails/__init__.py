"""Guardrails: limits on the recommendation of any planner."""
