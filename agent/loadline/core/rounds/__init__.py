"""Rounds, the steps of a turn that consider the whole state: scaling, migration, reconciliation and learned state."""
