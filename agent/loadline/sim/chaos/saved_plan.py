"""Plans that once broke something, kept in files, so that it never breaks again."""

from pathlib import Path

import msgspec
from msgspec import Struct

from loadline.errors import DataError
from loadline.sim.chaos.plan import FaultPlan, check


class SavedPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """One file."""

    violated: str
    """The invariant that broke when it was found."""
    detail: str
    """How."""
    plan: FaultPlan


def write(kept: SavedPlan, path: Path) -> None:
    """Write a file; JSON, for people too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def read(path: Path) -> SavedPlan:
    """Read a file.

    Raises:
        DataError: It cannot be read, is no kept plan, or names a fault that there is not.
    """
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=SavedPlan)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}. Name a file that is there.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a kept plan: {error}. Give one that tools/chaos.py has written.") from error
    check(kept.plan, str(path))
    return kept
