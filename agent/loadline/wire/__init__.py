"""Bytes at the border: messages, subjects, keys, codec."""
