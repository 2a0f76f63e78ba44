"""The simulated machines of a cluster: a timeline, NATS, etcd, and the processes that are connected to them."""
