"""The cases of a folder of vectors: four files, each in its own words, brought into one form."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

TOLERANCE = 1e-6


class Case(Struct, frozen=True):
    """What goes in, and what is said to come out."""

    id: str
    group: str
    op: str
    given: Any
    expected: Any
    tolerance: float = TOLERANCE


def cases_in(folder: Path) -> list[Case]:
    """All cases of the files of known names that are there."""
    return [case for name, read in FILES.items() if (folder / name).is_file() for case in read(_load(folder / name))]


def _load(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


def _dynamo(content: dict[str, Any]) -> Iterator[Case]:
    for case in content["cases"]:
        yield Case(case["id"], case["group"], case["op"] or "", case["in"], case["out"], case.get("tol", TOLERANCE))


def _llumnix(content: dict[str, Any]) -> Iterator[Case]:
    shared = {key: value for key, value in content.items() if key != "cases"}
    for case in content["cases"]:
        op = f"llumnix.{case['kind']}"
        yield Case(case["id"], op, op, {"given": case["given"], "shared": shared}, case["expect"])


def _wva(content: dict[str, Any]) -> Iterator[Case]:
    for case in content["cases"]:
        op = f"wva.{case['area']}"
        yield Case(case["id"], op, op, case["input"], case["expect"])


def _wva_queueing(content: dict[str, Any]) -> Iterator[Case]:
    for case in content["cases"]:
        expected = {key: value for key, value in case.items() if key not in {"id", "params", "profile"}}
        yield Case(case["id"], "wva.queueing", "wva.queueing", case["params"], expected)


FILES: dict[str, Callable[[dict[str, Any]], Iterator[Case]]] = {
    "dynamo_vectors.json": _dynamo,
    "llumnix_vectors.json": _llumnix,
    "wva_vectors.json": _wva,
    "wva_queueing.json": _wva_queueing,
}
