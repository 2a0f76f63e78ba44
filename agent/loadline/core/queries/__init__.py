"""Read-only queries of a state."""
