"""Subject layout on the bus, and the percent-encoding of its tokens."""

import re
from urllib.parse import quote, unquote

VERSION = "v1"
_UNSAFE = re.compile(r"[^A-Za-z0-9_%-]")
_TILDE_DOT = str.maketrans({"~": "%7E", ".": "%2E"})


def encode_token(name: str) -> str:
    """Percent-encode every byte outside ``[A-Za-z0-9_-]``, so that a name is exactly one token."""
    return quote(name, safe="").translate(_TILDE_DOT)


def decode_token(token: str) -> str:
    """Undo ``encode_token``.

    Raises:
        ValueError: The token has a character that should have been encoded, or bytes that are not UTF-8.
    """
    if _UNSAFE.search(token):
        raise ValueError(f"token {token!r} has characters that must be percent-encoded")
    return unquote(token, errors="strict")


class Subjects:
    """Subjects under one root."""

    def __init__(self, root: str) -> None:
        self.prefix = f"{root}.{VERSION}"

    def load(self, model: str, pool: str, worker: str) -> str:
        """Return the subject of a worker's load reports."""
        return f"{self.prefix}.load.{encode_token(model)}.{encode_token(pool)}.{encode_token(worker)}"

    def traffic(self, model: str, frontend: str) -> str:
        """Return the subject of a frontend's traffic reports."""
        return f"{self.prefix}.traffic.{encode_token(model)}.{encode_token(frontend)}"

    def decision(self, model: str) -> str:
        """Return the subject of a model's decisions; ``all_of('decision')`` is that of all models."""
        return f"{self.prefix}.decision.{encode_token(model)}"

    def applied(self, model: str) -> str:
        """Return the subject of scalers' answers."""
        return f"{self.prefix}.applied.{encode_token(model)}"

    def drain(self, worker: str) -> str:
        """Return the subject of drain commands to a worker."""
        return f"{self.prefix}.drain.{encode_token(worker)}"

    def drained(self, worker: str) -> str:
        """Return the subject of a worker's drain report."""
        return f"{self.prefix}.drained.{encode_token(worker)}"

    def migrate(self, worker: str) -> str:
        """Return the subject of migrate commands to a worker."""
        return f"{self.prefix}.migrate.{encode_token(worker)}"

    def migration(self, worker: str) -> str:
        """Return the subject of a worker's migration reports."""
        return f"{self.prefix}.migration.{encode_token(worker)}"

    def status(self, agent: str) -> str:
        """Return the subject of an agent's status."""
        return f"{self.prefix}.status.{encode_token(agent)}"

    def api(self, method: str, only: str = "") -> str:
        """Return the subject of a method of the agents' API; ``only`` names agents of a single function."""
        return f"{self.prefix}.api.{only}-{method}" if only else f"{self.prefix}.api.{method}"

    def all_of(self, kind: str) -> str:
        """Return the wildcard for all subjects of a kind, such as ``load``."""
        return f"{self.prefix}.{kind}.>"
