"""Core without I/O: it maps events and a time to effects."""
