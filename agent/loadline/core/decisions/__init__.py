"""State machines of decisions: leadership, ledger and drains."""
