"""Serving of requests in a simulated fleet: frontend, routing, prefix caches and KV transfers."""
