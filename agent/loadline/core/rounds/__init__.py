"""Rounds of one turn over the whole state: scaling, migration, reconciliation and learned state."""
