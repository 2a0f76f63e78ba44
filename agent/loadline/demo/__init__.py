"""A fleet to watch: simulated engines on real servers."""
