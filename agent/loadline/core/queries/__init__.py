"""Read-only questions to a state."""
