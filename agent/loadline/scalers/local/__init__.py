"""Scaler whose workers are processes of this host."""
