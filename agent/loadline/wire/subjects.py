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
        ValueError: The token holds a character that should have been encoded, or bytes that are not UTF-8.
    """
    if _UNSAFE.search(token):
        raise ValueError(f"token {token!r} holds characters that must be percent-encoded")
    return unquote(token, errors="strict")


class Subjects:
    """All subjects under one root."""

    def __init__(self, root: str) -> None:
        self.prefix = f"{root}.{VERSION}"

    def load(self, model: str, pool: str, worker: str) -> str:
        """Where a worker publishes its samples."""
        return f"{self.prefix}.load.{encode_token(model)}.{encode_token(pool)}.{encode_token(worker)}"

    def traffic(self, model: str, frontend: str) -> str:
        """Where a frontend publishes its intervals."""
        return f"{self.prefix}.traffic.{encode_token(model)}.{encode_token(frontend)}"

    def decision(self, model: str) -> str:
        """Where the decisions of a model are announced; ``*`` for all models is ``all_of('decision')``."""
        return f"{self.prefix}.decision.{encode_token(model)}"

    def applied(self, model: str) -> str:
        """Where scalers answer."""
        return f"{self.prefix}.applied.{encode_token(model)}"

    def drain(self, worker: str) -> str:
        """Where a worker takes drain commands."""
        return f"{self.prefix}.drain.{encode_token(worker)}"

    def drained(self, worker: str) -> str:
        """Where a worker says that it is empty."""
        return f"{self.prefix}.drained.{encode_token(worker)}"

    def migrate(self, worker: str) -> str:
        """Where a worker takes migrate commands."""
        return f"{self.prefix}.migrate.{encode_token(worker)}"

    def migration(self, worker: str) -> str:
        """Where a worker says how far a move of its requests is."""
        return f"{self.prefix}.migration.{encode_token(worker)}"

    def status(self, agent: str) -> str:
        """Where an agent says how it is."""
        return f"{self.prefix}.status.{encode_token(agent)}"

    def api(self, method: str, only: str = "") -> str:
        """Where agents answer people and programs; ``only``: those that do nothing but that."""
        return f"{self.prefix}.api.{only}-{method}" if only else f"{self.prefix}.api.{method}"

    def all_of(self, kind: str) -> str:
        """A wildcard for every subject of a kind, such as ``load``."""
        return f"{self.prefix}.{kind}.>"
