"""File of the lifetimes of worker processes."""

import time
from pathlib import Path

import msgspec
from msgspec import Struct

from loadline.adapters.logs import bounded

_log = bounded("local_scaler")


class Lifetime(Struct, frozen=True):
    """Lifetime of a worker process, for GPU-hours. Unix times in ms."""

    worker: str
    model: str
    pool: str
    gpus: int
    started_at_ms: int
    ended_at_ms: int
    reason: str


class Lifetimes:
    """JSON Lines file of lifetimes. A write error is logged and does not stop the scaler.

    Args:
        path: Path of the file; None: nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, lifetime: Lifetime) -> None:
        """Append a lifetime."""
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(lifetime) + b"\n")
        except OSError as error:
            _log.error("lifetime_not_written", worker=lifetime.worker, detail=str(error))


def unix_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000
