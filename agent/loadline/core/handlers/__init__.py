"""What follows from an event: one function for each kind, one module for each topic."""
