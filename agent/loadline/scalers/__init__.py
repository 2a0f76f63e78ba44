"""Programs that make decisions true."""
