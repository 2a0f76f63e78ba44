"""A world in which everything fails, and what must hold all the same: fault plans, invariants, and their play."""
