"""Evidence of reports about a pool: rates and latencies that its workers have shown."""
