"""The cases of a folder of vectors: four files, each in its own words, brought into one form."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

TOLERANCE = 1e-6
_RELATIVE, _NEAR_MS = 1e-3, 0.05


class Case(Struct, frozen=True):
    """What goes in, and what is said to come out."""

    id: str
    group: str
    op: str
    given: Any
    expected: Any
    tolerance: float = TOLERANCE
    near_ms: float = 0.0
    """How far off a time in ms may be, whatever the tolerance."""


def cases_in(folder: Path) -> list[Case]:
    """All cases of the files of known names that are there."""
    return [case for name, read in FILES.items() if (folder / name).is_file() for case in read(_load(folder / name))]


def _load(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


def _dynamo(content: dict[str, Any]) -> Iterator[Case]:
    for case in content["cases"]:
        yield Case(
            case["id"], case["group"], case["op"] or case["group"], case["in"], case["out"], case.get("tol", TOLERANCE)
        )


def _llumnix(content: dict[str, Any]) -> Iterator[Case]:
    shared = {key: value for key, value in content.items() if key != "cases"}
    for case in content["cases"]:
        op = f"llumnix.{case['kind']}"
        yield Case(case["id"], op, op, {"given": case["given"], "shared": shared}, _of_original(case["expect"]))


def _of_original(expected: Any) -> Any:
    """What is expected, in the words of matchers. That the original goes by chance is said beside all it may answer."""
    if not isinstance(expected, dict):
        return expected
    known = {key: one for key, one in expected.items() if key != "upstream_nondeterministic"}
    if {"cycles_min", "cycles_max"} <= known.keys():
        known["cycles"] = {"min": known.pop("cycles_min"), "max": known.pop("cycles_max")}
    return known


def _wva(content: dict[str, Any]) -> Iterator[Case]:
    for case in content["cases"]:
        op = f"wva.{case['area']}"
        build = _single if "queue" in op else Case
        yield build(case["id"], op, op, case["input"], case["expect"])


def _wva_queueing(content: dict[str, Any]) -> Iterator[Case]:
    """An engine is a case, and so is each rate at which it is analysed, and all targets that it is sized for."""
    for case in content["cases"]:
        group, params = "wva.queueing", case["params"]
        expected = {key: case[key] for key in ("rate_min_rps", "rate_max_rps", "size_error") if key in case}
        yield _single(case["id"], group, group, params, expected)
        for op, name, asked in (("queue_model_g1", "analyze", "lambda_rps"), ("queue_sizing_g1", "size", "target_")):
            for number, one in enumerate(case.get(name, ())):
                given = params | {key: value for key, value in one.items() if key.startswith(asked)}
                yield _single(f"{case['id']}-{name}-{number}", group, f"wva.{op}", given, one)


def _single(name: str, group: str, op: str, given: Any, expected: Any) -> Case:
    """A case whose reference reckons in single precision, and stops its searches early.

    The length of a queue is a wait by Little's law, and as far off.
    """
    if isinstance(expected, dict) and "queue_len" in expected:
        near = max(_RELATIVE * expected["queue_len"], _NEAR_MS / 1_000.0 * expected["throughput_rps"])
        bounds = {"min": expected["queue_len"] - near, "max": expected["queue_len"] + near}
        expected = {**expected, "queue_len": bounds}
    return Case(name, group, op, given, expected, _RELATIVE, _NEAR_MS)


FILES: dict[str, Callable[[dict[str, Any]], Iterator[Case]]] = {
    "dynamo_vectors.json": _dynamo,
    "llumnix_vectors.json": _llumnix,
    "wva_vectors.json": _wva,
    "wva_queueing.json": _wva_queueing,
}
