"""Simulated engines behind an OpenAI-compatible HTTP API with the metric names of vLLM."""
