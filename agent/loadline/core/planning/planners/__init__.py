"""Planners: one file each, one line each in PLANNERS."""

PLANNERS: dict[str, object] = {}
