"""Planning of worker counts: planners, demand, sizing, guardrails and allocation."""
