"""A scaling round: evaluate, allocate, constrain, gate, propose."""
