"""Chaos testing in virtual time: fault plans, fault injection, and the invariants that must hold under them."""
