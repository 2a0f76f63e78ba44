"""Performance models of engines: numbers in, numbers out."""
