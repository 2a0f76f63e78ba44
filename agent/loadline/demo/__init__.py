"""Demo: a fleet of simulated engines on real servers."""
