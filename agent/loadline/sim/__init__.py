"""A deterministic world: engines in virtual time."""
