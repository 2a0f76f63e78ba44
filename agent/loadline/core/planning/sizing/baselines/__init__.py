"""Metrics and behaviours that the rules of other autoscalers need."""
