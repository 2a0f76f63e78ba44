"""Steps of pools by the load that each worker has."""
