"""Migration of requests between workers: policies, load metrics and in-flight migrations."""
