"""Loads: requests at a rate that changes from phase to phase, or a part of a recorded trace."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.scalars import Role
from loadline.traces import Arrival, RateKnobs, read_trace

ROOT: Final = Path(__file__).resolve().parents[3]
SEED: Final = 1
_TRACE_BLOCK_TOKENS: Final = 512


class Phase(Struct, frozen=True):
    """Requests at a mean rate for a time, all of the same lengths."""

    duration_s: float
    per_s: float
    isl_tokens: int = 1_000
    osl_tokens: int = 100


class Window(Struct, frozen=True):
    """Part of a recorded trace, with a factor of its load."""

    path: str
    duration_s: float
    scale: float
    start_s: float = 0.0


class Row(Struct, frozen=True):
    """A load, and the fleet that serves it."""

    text: str
    load: tuple[Phase, ...] | Window
    start_up_s: float = 30.0
    roles: tuple[Role, ...] = ("aggregated",)
    engine: dict[str, float | str] = {}
    """Options of the mock engine that are not NVIDIA's defaults."""

    def arrivals(self) -> list[Arrival]:
        """Return the requests in order of their arrival."""
        if isinstance(self.load, Window):
            window = self.load
            knobs = RateKnobs(start_s=window.start_s, duration_s=window.duration_s, scale=window.scale, gaps="skip")
            return read_trace(ROOT / window.path, seed=SEED, arrivals=knobs).arrivals
        return list(_poisson(self.load))


def write_trace(path: Path, arrivals: list[Arrival]) -> None:
    """Write requests in Mooncake's format; no two of them have a block of the prompt in common."""
    block = 0
    with path.open("w", encoding="ascii") as file:
        for one in arrivals:
            blocks = -(-one.isl_tokens // _TRACE_BLOCK_TOKENS)
            request = {
                "timestamp": round(one.arrival_s * 1_000),
                "input_length": one.isl_tokens,
                "output_length": one.osl_tokens,
                "hash_ids": list(range(block, block + blocks)),
            }
            file.write(json.dumps(request) + "\n")
            block += blocks


def _poisson(phases: tuple[Phase, ...]) -> Iterator[Arrival]:
    random, begin_s = Random(SEED), 0.0  # noqa: S311 - a seeded load
    for phase in phases:
        end_s = begin_s + phase.duration_s
        at_s = begin_s
        while phase.per_s and (at_s := at_s + random.expovariate(phase.per_s)) < end_s:
            yield Arrival(at_s, phase.isl_tokens, phase.osl_tokens)
        begin_s = end_s
