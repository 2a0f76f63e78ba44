"""Workers that each pool needs, by all evidence that there is."""
