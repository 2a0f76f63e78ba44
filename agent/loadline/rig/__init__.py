"""Real servers and agents in processes of their own, for tests, benchmarks and the demo."""
