"""Simulated infrastructure: timeline, NATS, etcd, and the processes that are connected to them."""
