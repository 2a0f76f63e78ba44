"""Everything that a controller knows, its settings and its snapshot."""
