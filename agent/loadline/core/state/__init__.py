"""State of a controller, its settings and its snapshot."""
