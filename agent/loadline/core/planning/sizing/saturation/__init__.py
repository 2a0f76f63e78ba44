"""Steps of pools by the occupancy of their workers, within what their latencies allow."""
