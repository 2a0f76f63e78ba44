"""Types that all of the core shares: events, effects, samples, decisions, reasons and status."""
