"""GPU-hours and drains, from the lifetimes file of the local scaler."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadline.errors import DataError
from loadline.scalers.local.lifetimes import Lifetime

_MS_IN_HOUR = 3_600_000


def gpu_hours(path: Path, speed: float) -> float:
    """Return the virtual GPU-hours of all workers that have ended, start-up delay included.

    Args:
        path: The scaler's ``lifetimes_file``; if it is missing, no worker has ended.
        speed: Virtual seconds per real second.

    Raises:
        DataError: A line is invalid.
    """
    return sum(life.gpus * max(life.ended_at_ms - life.started_at_ms, 0) for life in _read(path)) * speed / _MS_IN_HOUR


def count_drained(path: Path) -> int:
    """Count the workers that ended because they were drained.

    Raises:
        DataError: A line is invalid.
    """
    return sum(life.reason == "drained" for life in _read(path))


def _read(path: Path) -> Iterator[Lifetime]:
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        try:
            yield msgspec.json.decode(line, type=Lifetime)
        except msgspec.MsgspecError as error:
            raise DataError(f"{path}, line {number}: no lifetime ({error}). Remove the file.") from error
