"""Profiler: measures an engine behind an OpenAI-compatible API, and writes what planners read."""
