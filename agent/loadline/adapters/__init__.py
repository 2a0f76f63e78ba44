"""Adapters: one third-party client per file, each behind a port."""
