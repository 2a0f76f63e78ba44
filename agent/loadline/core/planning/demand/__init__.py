"""Demand on a model: traffic by interval and its forecasts."""
