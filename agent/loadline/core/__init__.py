"""The pure core: events and a time in, effects out."""
