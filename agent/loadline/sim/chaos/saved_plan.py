"""Files of fault plans that once violated an invariant, as regression tests."""

from pathlib import Path

import msgspec
from msgspec import Struct

from loadline.errors import DataError
from loadline.sim.chaos.plan import FaultPlan, check


class SavedPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """A saved plan and the violation that it found."""

    violated: str
    """Invariant that the plan violated."""
    detail: str
    """Detail of the violation."""
    plan: FaultPlan


def write(saved: SavedPlan, path: Path) -> None:
    """Write a plan as indented JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n")


def read(path: Path) -> SavedPlan:
    """Read a saved plan.

    Raises:
        DataError: The file cannot be read, is not a saved plan, or names an unknown fault.
    """
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=SavedPlan)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}. Name an existing file.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a saved plan: {error}. Name a file that tools/chaos.py has written.") from error
    check(saved.plan, str(path))
    return saved
