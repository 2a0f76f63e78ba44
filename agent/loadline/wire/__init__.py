"""The wire format: messages, subjects, keys and codec."""
