"""loadline: autoscaler and request migration for fleets of LLM inference engines."""

__version__ = "0.1.0"
