"""Subject layout on the bus, and the percent-encoding of its tokens."""

import re
from urllib.parse import quote, unquote

VERSION = "v1"
_REPORTS_BY_MODEL = ("load", "traffic", "drained", "migration")
_SAFE = re.compile(r"[A-Za-z0-9_-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9_%-]")
_TILDE_DOT = str.maketrans({"~": "%7E", ".": "%2E"})


def encode_token(name: str) -> str:
    """Percent-encode every byte outside ``[A-Za-z0-9_-]``, so that a name is exactly one token."""
    if _SAFE.fullmatch(name):
        return name  # as nearly all: quote() takes ten times as long
    return quote(name, safe="").translate(_TILDE_DOT)


def decode_token(token: str) -> str:
    """Undo ``encode_token``.

    Raises:
        ValueError: ``encode_token`` does not return the token. With a second token for a name, somebody could speak for
            it, or remove it, without touching the key or subject that its owner watches.
    """
    if _UNSAFE.search(token):
        raise ValueError(f"token {token!r} has characters that must be percent-encoded")
    if "%" not in token:
        return token
    name = unquote(token, errors="strict")
    if encode_token(name) != token:
        raise ValueError(f"token {token!r} is not the encoding of {name!r}, which is {encode_token(name)!r}")
    return name


class Subjects:
    """Subjects under one root."""

    def __init__(self, root: str) -> None:
        self.prefix = f"{root}.{VERSION}"

    def load(self, model: str, pool: str, worker: str) -> str:
        """Return the subject of a worker's load reports."""
        return self._of_worker("load", model, pool, worker)

    def traffic(self, model: str, frontend: str) -> str:
        """Return the subject of a frontend's traffic reports."""
        return f"{self.prefix}.traffic.{encode_token(model)}.{encode_token(frontend)}"

    def decision(self, model: str) -> str:
        """Return the subject of a model's decisions; ``all_of('decision')`` is that of all models."""
        return f"{self.prefix}.decision.{encode_token(model)}"

    def applied(self, model: str) -> str:
        """Return the subject of scalers' answers."""
        return f"{self.prefix}.applied.{encode_token(model)}"

    def drain(self, model: str, pool: str, worker: str) -> str:
        """Return the subject of drain commands to a worker."""
        return self._of_worker("drain", model, pool, worker)

    def drained(self, model: str, pool: str, worker: str) -> str:
        """Return the subject of a worker's drain report."""
        return self._of_worker("drained", model, pool, worker)

    def migrate(self, model: str, pool: str, worker: str) -> str:
        """Return the subject of migrate commands to a worker."""
        return self._of_worker("migrate", model, pool, worker)

    def migration(self, model: str, pool: str, worker: str) -> str:
        """Return the subject of a worker's migration reports."""
        return self._of_worker("migration", model, pool, worker)

    def status(self, agent: str) -> str:
        """Return the subject of an agent's status."""
        return f"{self.prefix}.status.{encode_token(agent)}"

    def api(self, method: str, only: str = "") -> str:
        """Return the subject of a method of the agents' API; ``only`` names agents of a single function."""
        return f"{self.prefix}.api.{only}-{method}" if only else f"{self.prefix}.api.{method}"

    def by_name(self, kind: str, worker: str) -> str:
        """Return the former subject of drains and migrations, which has the worker's name only.

        Workers of version 0.1 still use it. Permissions cannot confine a login to a pool with it.
        """
        return f"{self.prefix}.{kind}.{encode_token(worker)}"

    def all_drained(self, model: str) -> tuple[str, str]:
        """Return the wildcards for drain reports of a model's workers, and for those on the former subject."""
        return f"{self.prefix}.drained.{encode_token(model)}.>", f"{self.prefix}.drained.*"

    def reports_of(self, model: str) -> tuple[str, ...]:
        """Return the wildcards for all that is reported about one model."""
        token = encode_token(model)
        return self.applied(model), *(f"{self.prefix}.{kind}.{token}.>" for kind in _REPORTS_BY_MODEL)

    def _of_worker(self, kind: str, model: str, pool: str, worker: str) -> str:
        return f"{self.prefix}.{kind}.{encode_token(model)}.{encode_token(pool)}.{encode_token(worker)}"

    def all_of(self, kind: str) -> str:
        """Return the wildcard for all subjects of a kind, such as ``load``."""
        return f"{self.prefix}.{kind}.>"
