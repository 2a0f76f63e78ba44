"""Deterministic simulation of fleets in virtual time."""
