"""Performance models and the arithmetic of planners: numbers in, numbers out, and nothing remembered but samples."""
