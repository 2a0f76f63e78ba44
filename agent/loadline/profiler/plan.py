"""Points of the sweeps, in an order in which every beginning is a coarse sweep of the whole range."""

from typing import Final

from msgspec import Struct

_ISL_MIN: Final = 100
_MARGIN_TOKENS: Final = 8
"""Tokens below the model's context that prompts leave free, for those that a chat template adds."""
_KV_FILL: Final = 0.95
"""Part of the KV cache that the largest batch fills; engines preempt when it is full."""


class Grid(Struct, frozen=True):
    """Sizes of the sweeps."""

    prompts: int
    contexts: int
    batches: int
    osl_tokens: int
    """Output of a decode measurement."""
    repeats: int
    """Measured prompts of each length, and most batches of each kind."""


QUICK: Final = Grid(prompts=6, contexts=3, batches=4, osl_tokens=64, repeats=3)
FULL: Final = Grid(prompts=16, contexts=6, batches=6, osl_tokens=128, repeats=3)


class Limits(Struct, frozen=True):
    """Limits of an engine: those that options give or it reports, and those found, which hold for later runs too."""

    context_max: int
    """Tokens of a prompt and its output."""
    kv_tokens: int
    block_tokens: int
    batch_max: int
    """Requests of the largest batch."""
    context_found: int | None = None
    """Tokens at most, by a refusal of the engine."""
    batches_found: dict[int, int] = {}
    """Requests that ran at a time where fewer did, by the context; longer contexts run no more."""

    @property
    def context_tokens(self) -> int:
        """Longest prompt with its output."""
        return self.context_max if self.context_found is None else min(self.context_max, self.context_found)


class PrefillTask(Struct, frozen=True):
    """Measurement of the TTFT of one prompt length."""

    isl_tokens: int


class DecodeTask(Struct, frozen=True):
    """Measurement of the ITL of a batch of equal requests; the context is that in the middle of the output."""

    context_tokens: int
    requests: int


Task = PrefillTask | DecodeTask


def plan(grid: Grid, limits: Limits) -> tuple[list[Task], int]:
    """Return the tasks in the order of measurement, and the number of those without which there is no sweep."""
    context_max = min(limits.context_tokens, int(limits.kv_tokens * _KV_FILL)) - _MARGIN_TOKENS
    isl = _spread(min(_ISL_MIN, max(context_max // 4, 1)), context_max, grid.prompts)
    prefills = [PrefillTask(tokens) for tokens in _ends_first(isl)]
    half = grid.osl_tokens // 2
    rows = _ends_first(_spread(min(_ISL_MIN, context_max // 4) + half, context_max - half, grid.contexts))
    levels = [_ends_first(_spread(1, _batch_max(context, half, limits), grid.batches)) for context in rows]
    corners = [DecodeTask(row, n) for row, batches in list(zip(rows, levels, strict=True))[:2] for n in batches[:2]]
    decodes = [DecodeTask(row, n) for row, batches in zip(rows, levels, strict=True) for n in batches]
    first: list[Task] = [*prefills[:2], *corners]
    others: list[tuple[float, Task]] = [(place / len(prefills), task) for place, task in enumerate(prefills)]
    others += [(place / len(decodes), task) for place, task in enumerate(decodes)]
    others.sort(key=lambda one: one[0])
    return [*first, *(task for _, task in others if task not in first)], len(first)


def _batch_max(context: int, half: int, limits: Limits) -> int:
    """Return the requests that with the second ``half`` of their output fit into the KV cache and the batch."""
    held = -(-(context + half) // limits.block_tokens) * limits.block_tokens
    found = (requests for shortest, requests in limits.batches_found.items() if shortest <= context)
    return max(min(int(limits.kv_tokens * _KV_FILL) // held, limits.batch_max, *found), 1)


def _spread(low: int, high: int, count: int) -> list[int]:
    """Return up to ``count`` numbers from low to high, closer together at the low end, where curves bend."""
    shares = [(place / (count - 1)) ** 2 for place in range(count)]
    return sorted({low + round((max(high, low) - low) * share) for share in shares})


def _ends_first(values: list[int]) -> list[int]:
    """Return the values so that each beginning covers the range: both ends, then the middles of the largest gaps."""
    if len(values) <= 2:  # noqa: PLR2004 - two ends
        return values
    order, gaps = [0, len(values) - 1], [(0, len(values) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [values[place] for place in order]
