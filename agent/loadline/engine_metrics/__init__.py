"""Metrics of engines and routers: from a page in the Prometheus text format to loads and traffic. Pure."""
