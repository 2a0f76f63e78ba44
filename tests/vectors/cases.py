"""Cases of a folder of vectors: converts four files, each with a format of its own, to one form."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

TOLERANCE = 1e-6
_RELATIVE, _NEAR_MS = 1e-3, 0.05


class Case(Struct, frozen=True):
    """Input and expected output of the original."""

    id: str
    group: str
    op: str
    given: Any
    expected: Any
    tolerance: float = TOLERANCE
    near_ms: float = 0.0
    """Absolute tolerance of times in ms, in addition to the relative one."""


def cases_in(folder: Path) -> list[Case]:
    """Return all cases of the files in the folder that have known names."""
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
    """Convert expected values to matchers.

    The mark of nondeterminism is dropped: such cases list all possible answers.
    """
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
    """Yield a case for each engine, each rate at which it is analysed and each set of targets it is sized for."""
    for case in content["cases"]:
        group, params = "wva.queueing", case["params"]
        expected = {key: case[key] for key in ("rate_min_rps", "rate_max_rps", "size_error") if key in case}
        yield _single(case["id"], group, group, params, expected)
        for op, name, asked in (("queue_model_g1", "analyze", "lambda_rps"), ("queue_sizing_g1", "size", "target_")):
            for number, one in enumerate(case.get(name, ())):
                given = params | {key: value for key, value in one.items() if key.startswith(asked)}
                yield _single(f"{case['id']}-{name}-{number}", group, f"wva.{op}", given, one)


def _single(name: str, group: str, op: str, given: Any, expected: Any) -> Case:
    """Return a case with the tolerance of a reference that uses single precision and stops its searches early.

    A queue length follows from a wait by Little's law, so it has the same error.
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
