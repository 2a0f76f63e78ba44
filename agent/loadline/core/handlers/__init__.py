"""Handlers of events: one function for each kind, one module for each topic."""
