"""Rules of other autoscalers, to compare with."""
