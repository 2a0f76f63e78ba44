"""GPU hours and drains, from the lifetimes that the local scaler writes down."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadline.errors import DataError
from loadline.scalers.local_processes import Lifetime

_MS_IN_HOUR = 3_600_000


def gpu_hours(path: Path, speed: float) -> float:
    """Virtual GPU hours of all workers that have ended: from the start of the process, start-up delay included.

    Args:
        path: The scaler's ``lifetimes_file``; none there: no worker has ended.
        speed: How many times as fast as real time the fleet lived.

    Raises:
        DataError: A line is no lifetime.
    """
    return sum(life.gpus * max(life.ended_at_ms - life.started_at_ms, 0) for life in _read(path)) * speed / _MS_IN_HOUR


def count_drained(path: Path) -> int:
    """How many workers ended because they had been drained.

    Raises:
        DataError: A line is no lifetime.
    """
    return sum(life.reason == "drained" for life in _read(path))


def _read(path: Path) -> Iterator[Lifetime]:
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        try:
            yield msgspec.json.decode(line, type=Lifetime)
        except msgspec.MsgspecError as error:
            raise DataError(f"{path}, line {number}: no lifetime ({error}). Remove the file.") from error
