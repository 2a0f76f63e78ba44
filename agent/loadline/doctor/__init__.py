"""Checks of a deployment: what works, what does not, and one remedy for each."""
