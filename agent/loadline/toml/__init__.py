"""TOML files as Structs, for all programs. It imports little: a sidecar takes 15 MB less than with ``config``."""
