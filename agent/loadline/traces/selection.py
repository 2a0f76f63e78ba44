"""Selection of the requests of a trace: a window, thinned or multiplied."""

import math
import random
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from loadline.errors import DataError
from loadline.traces.line_reader import LineReader
from loadline.traces.trace import BLOCKS_MAX, REQUESTS_MAX, Arrival, RateKnobs

# Jitter of copies: enough to separate a burst of single requests, too little to shift a wave of minutes.
JITTER_S = 5.0


class Selection(Struct):
    """Selected requests; times are relative to the start of the window."""

    arrivals: list[Arrival]
    duration_s: float


def select_requests(rows: Iterator[Arrival], knobs: RateKnobs, seed: int, lines: LineReader) -> Selection:
    """Select the requests of the window; thin them at scales below 1, add jittered copies above 1.

    Does not read past the window.

    Raises:
        DataError: A row is wrong, the trace ends before the window, no request is in it, or too many are.
    """
    rng = random.Random(f"{seed}:thin")  # noqa: S311 - repeatable, no secret
    start_s, end_s = knobs.start_s, knobs.start_s + (knobs.duration_s or float("inf"))
    arrivals: list[Arrival] = []
    last_s, blocks = 0.0, 0
    for one in rows:
        last_s = min(one.arrival_s, end_s)
        if one.arrival_s >= end_s:
            break
        if one.arrival_s < start_s or (knobs.scale < 1 and rng.random() >= knobs.scale):
            continue
        arrivals.append(replace(one, arrival_s=one.arrival_s - start_s) if start_s else one)
        blocks += len(one.prefix)
        if max(len(arrivals) / REQUESTS_MAX, blocks / BLOCKS_MAX) * max(knobs.scale, 1.0) > 1:
            raise too_many_requests(lines, f"more than {REQUESTS_MAX} requests or {BLOCKS_MAX} ids of blocks are")
    if last_s < start_s:
        raise lines.error(f"the trace ends at {last_s:.0f} s, before the start at {start_s:g} s", "Start within it.")
    if not arrivals:
        raise lines.error("there are no requests", "Name a trace with at least one, or take a wider window of it.")
    return Selection(_superposed(arrivals, last_s - start_s, knobs.scale, seed), last_s - start_s)


def too_many_requests(lines: LineReader, count: str) -> DataError:
    """Return an error for a selection of too many requests."""
    remedy = "Select a shorter window or a smaller scale."
    return lines.error(f"{count} selected", remedy)


def _superposed(arrivals: list[Arrival], duration_s: float, scale: float, seed: int) -> list[Arrival]:
    """Superpose ``scale`` copies, the last one thinned to the fraction; all but the first are jittered by up to 5 s.

    Each copy has its own block ids, as of other users, so that the rate of cache hits stays that of the trace.
    """
    if scale <= 1:
        return arrivals
    rng = random.Random(f"{seed}:copies")  # noqa: S311 - repeatable, no secret
    ids = 1 + max((max(one.prefix, default=-1) for one in arrivals), default=-1)
    copies = list(arrivals)
    for copy in range(1, math.ceil(scale)):
        for one in arrivals:
            if rng.random() >= scale - copy:
                continue
            # Times outside the trace are reflected at its ends.
            at_s = abs(one.arrival_s + rng.uniform(-JITTER_S, JITTER_S))
            at_s = max(0.0, min(at_s, 2 * duration_s - at_s))
            prefix = tuple(block + copy * ids for block in one.prefix)
            copies.append(Arrival(at_s, one.isl_tokens, one.osl_tokens, prefix, one.hit_tokens))
    copies.sort(key=lambda one: one.arrival_s)
    return copies
