"""loadline: keeps a fleet of LLM inference engines at its load line."""

__version__ = "0.1.0"
