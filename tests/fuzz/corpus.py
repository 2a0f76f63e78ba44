"""The kept corpus: for each target a file of JSON Lines, a string of Latin-1 for each input."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from tests.fuzz.target import Escape, Target

FOLDER: Final = Path(__file__).with_name("corpus")
INPUT_BYTES_MAX: Final = 4_096
"""Largest kept input."""
_PACKAGE: Final = "/loadline/"


def kept(target: Target) -> list[bytes]:
    """Return the kept inputs of a target, without its seeds."""
    path = FOLDER / f"{target.name}.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=str).encode("latin-1") for line in lines]


def keep(target: Target, inputs: Iterable[bytes]) -> int:
    """Write the corpus of a target: of these inputs, those that take steps which no seed and no smaller one takes."""
    seen: set[tuple[str, int, int]] = set()
    for seed in target.seeds:
        seen |= _reached(target, seed)
    chosen: list[bytes] = []
    for data in sorted({one for one in inputs if len(one) <= INPUT_BYTES_MAX}, key=lambda one: (len(one), one)):
        reached = _reached(target, data)
        if not reached <= seen:
            seen |= reached
            chosen.append(data)
    lines = [msgspec.json.encode(data.decode("latin-1")) + b"\n" for data in chosen]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target.name}.jsonl").write_bytes(b"".join(lines))
    return len(chosen)


def _reached(target: Target, data: bytes) -> set[tuple[str, int, int]]:
    """Return the steps from line to line that an input takes through the package."""
    steps: set[tuple[str, int, int]] = set()
    before: dict[int, int] = {}

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if _PACKAGE not in name:
            return None
        if event == "line":
            steps.add((name, before.get(id(frame), 0), frame.f_lineno))
            before[id(frame)] = frame.f_lineno
        elif event == "return":
            before.pop(id(frame), None)
        return trace

    sys.settrace(trace)
    try:
        target.examine(data, patience=1_000.0)
    except Escape:
        pass
    finally:
        sys.settrace(None)
    return steps
