"""How a decision becomes true: leadership, ledger, drains."""
