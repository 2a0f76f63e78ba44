"""Segments of a journal, whose names sort by time, and the lock of its folder."""

import fcntl
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from loadline.core.state.partition import SCOPE_PREFIX
from loadline.errors import JournalError

_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z-\d{6}\.jsonl")


def next_name(last: str) -> str:
    """Return a name of time and number that sorts after the last one, even if the wall clock was set back."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"
    if last and stamp <= last.partition("-")[0]:
        stamp, _, number = last.removesuffix(".jsonl").partition("-")
        return f"{stamp}-{int(number) + 1:06}.jsonl"
    return f"{stamp}-000000.jsonl"


def segments_in(directory: Path) -> list[Path]:
    """Return the segments in a folder, oldest first.

    Raises:
        OSError: It cannot be read.
    """
    # A folder of that name can neither be read nor deleted, and would stop the journal for ever.
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_file())


def folders_of_shards(directory: Path) -> list[Path]:
    """Return the folders that have segments, by name, in the folder of an agent that shares the models.

    Raises:
        OSError: One cannot be read.
    """
    return sorted(path for path in directory.glob(f"{SCOPE_PREFIX}*") if path.is_dir() and segments_in(path))


def lock_folder(directory: Path) -> int:
    """Lock the folder; return the file to close at the end.

    Raises:
        JournalError: Another agent has locked it.
        OSError: The folder cannot be used.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise JournalError(
            f"{directory}: another agent writes its journal there. Give each a folder of its own"
        ) from error
    return lock
