"""How requests are served in a simulated fleet: gateways, routing, caches, transfers of KV."""
