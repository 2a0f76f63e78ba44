"""Amounts to migrate between two workers, by the load gap, copy time, remaining time, slots and room."""

from collections.abc import Callable
from math import ceil, isnan
from typing import Final

import numpy as np

from loadline.core.engines.arrays import FloatArray
from loadline.core.engines.tpot import predicted_tpot
from loadline.core.migration.knobs import MetricName
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.measures import KV_NEEDED, KV_TOTAL
from loadline.core.migration.outcomes import MigrationAmount, MigrationCode, NotPlanned
from loadline.core.vocabulary.migrations import ALL_REQUESTS, MigrationOrder, MigrationRule

Sizer = Callable[[LoadView, int, int], MigrationAmount | NotPlanned]
"""Function that sizes a migration from one row to another, or returns the reason for none."""

TOKENS_MAX: Final = 1e12
"""Bound of token values in commands, above the tokens of any worker."""
REQUESTS_MAX: Final = 1_024
"""Requests of one worker up to which effects are computed: the largest ``migrations_per_worker_max``.

It bounds the work if a worker claims any number."""
SOON_MS: Final = 2_000.0
"""Approximate time until a migration has an effect; a worker that is ready sooner takes new requests instead."""
_COPY_RATIO_MAX: Final = 0.5
"""Largest ratio of copy time to remaining time; beyond it, a request has nearly completed when it arrives."""
_KV: Final = "kv_cache_usage_ratio_projected"
_ROUNDING: Final = 1e-9
"""Tolerance of differences of loads, since 1.0 - 0.3 is less than 0.7 in floating point."""


def slots_between(view: LoadView, source: int, destination: int) -> int:
    """Return the maximum requests that can migrate between two workers at a time."""
    free_out, free_in = view.free_out.item(source), view.free_in.item(destination)
    return int(min(free_out, free_in, view.movable.item(source), view.pair_requests_max))


def free_tokens(view: LoadView, row: int, usage_max: float = 1.0) -> float:
    """Return the tokens that fit into the KV cache of a worker up to a usage (0..1); NaN if unknown."""
    needed, total = view.measure_of(KV_NEEDED, row), view.measure_of(KV_TOTAL, row)
    return min(total * usage_max - needed - view.tokens_in_flight.item(row), TOKENS_MAX)


def size_for_balance(metric: MetricName, threshold: float) -> Sizer:
    """Return a sizer for half the load gap, which makes both loads equal.

    A threshold of KV usage between 0 and 1 also bounds the KV usage of the destination.
    """

    def size(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
        load_of, gap_min = view.metric(metric).item, view.knobs.load_balance_threshold
        each, gap = view.tokens_per_request(source), load_of(source) - load_of(destination)
        total, other = view.measure_of(KV_TOTAL, source), view.measure_of(KV_TOTAL, destination)
        if other < total or isnan(other):  # NaN if either is unknown; np.minimum takes 5 times as long
            total = other
        tokens = _tokens(metric, gap, each, total)
        if gap < gap_min - _ROUNDING or tokens <= each:
            needed = max(gap_min, gap * each / tokens)
            loads = {"source": load_of(source), "destination": load_of(destination)}
            return NotPlanned.of(MigrationCode.GAP_TOO_SMALL, **loads, gap_min=needed)
        obstacle = _worker_soon_ready(view) or _finishes_sooner(view, each)
        if obstacle is not None:
            return obstacle
        usage_max = threshold if metric == _KV and 0.0 < threshold < 1.0 else 1.0
        space = free_tokens(view, destination, usage_max)
        if space < each:
            return NotPlanned.of(MigrationCode.NO_ROOM, tokens=each, room=max(space, 0.0))
        count = slots_between(view, source, destination)
        tokens_min = min(_tokens(metric, gap_min, each, total), tokens)
        return _half_of(view, source, each, tokens, tokens_min, space, count)

    return size


def _tokens(metric: MetricName, gap: float, each: float, total: float) -> float:
    """Return a load gap in tokens, for KV caches of ``total`` tokens.

    A gap of predicted time per output token counts as two requests, so that one migrates.
    """
    if metric == "predicted_tpot":
        return 2.0 * each
    if metric == _KV:
        return min(gap * total, TOKENS_MAX)
    in_tokens = metric.endswith("tokens_num") or metric == "num_tokens"
    return min(gap * (1.0 if in_tokens else each), TOKENS_MAX)


def _half_of(  # noqa: PLR0917 - one argument for each fact
    view: LoadView, source: int, each: float, gap: float, gap_min: float, space: float, count: int
) -> MigrationAmount:
    """Return an amount of half a gap in tokens, at least the configured minimum, in requests of ``each`` tokens.

    The minimum is limited so that it opens no gap of ``gap_min`` in the other direction, which would migrate back.
    """
    knobs, total = view.knobs, view.measure_of(KV_TOTAL, source)
    rule, order, minimum = knobs.req_select_rule, knobs.req_select_order, knobs.req_select_value
    tokens_max = None if isnan(space) else int(space)
    limit = (gap + gap_min) / 2.0 - each
    if rule == "NUM_REQ":
        count = min(count, max(int(limit / each), 1), count if minimum < 0.0 else max(int(minimum), 1))
        return MigrationAmount(rule, order, minimum, count, int(each * count), tokens_max)
    if rule == "RATIO" and not view.table.reports_capacity(source):  # the source does not know what a ratio refers to
        rule, minimum = "TOKEN", 0.0
    floor = minimum * total if rule == "RATIO" else minimum
    tokens = min(max(gap / 2.0, min(floor, limit)), TOKENS_MAX if isnan(space) else space)
    value = tokens / total if rule == "RATIO" else tokens
    # Orders with short requests first select more of them, up to twice as many as of mean length.
    count = min(count, max(ceil(2.0 * tokens / each), 1))
    return MigrationAmount(rule, order, value, count, int(min(tokens, each * count)), tokens_max)


def _worker_soon_ready(view: LoadView) -> NotPlanned | None:
    ready_ms = view.next_ready_ms
    if ready_ms is None or ready_ms > SOON_MS:
        return None
    return NotPlanned.of(MigrationCode.WORKER_SOON_READY, left_ms=ready_ms)


def _finishes_sooner(view: LoadView, tokens: float) -> NotPlanned | None:
    """Return the reason why a request of ``tokens`` should stay at its worker; None if it should not."""
    remaining_ms, copy_ms = view.remaining_ms, view.knobs.copy_ms(tokens)
    if remaining_ms is None or copy_ms <= _COPY_RATIO_MAX * remaining_ms:
        return None
    return NotPlanned.of(MigrationCode.FINISHES_SOONER, copy_ms=copy_ms, left_ms=remaining_ms)


def size_for_evacuation(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
    """Size for all requests for which there are slots and room, so that the source becomes empty."""
    return _by_count(view, source, destination, "LR", slots_between(view, source, destination), ALL_REQUESTS)


def size_for_drain(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
    """Size as for an evacuation, unless the requests complete before copying them pays off."""
    obstacle = _finishes_sooner(view, view.tokens_per_request(source))
    return obstacle or size_for_evacuation(view, source, destination)


def size_for_mitigation(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
    """Size so that the source meets the objective for the time per output token and the destination still does."""
    each, limit = view.tokens_per_request(source), slots_between(view, source, destination)
    exceeding = np.flatnonzero(~(_tpot_with(view, source, -each, -1.0, limit) < _tpot_max_ms(view)))
    return _by_tpot(view, source, destination, min(len(exceeding) + 1, limit))


def size_for_consolidation(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
    """Size for all requests with which the destination meets the objective for the time per output token."""
    return _by_tpot(view, source, destination, slots_between(view, source, destination))


def _by_tpot(view: LoadView, source: int, destination: int, limit: int) -> MigrationAmount | NotPlanned:
    each = view.tokens_per_request(source)
    obstacle = _worker_soon_ready(view) or _finishes_sooner(view, each)
    if obstacle is not None:
        return obstacle
    count = requests_within_slo(view, destination, each, limit)
    if count < 1:
        space = free_tokens(view, destination)
        # Where its KV cache has room, or reports none, the time per output token has no room for a request.
        room = max(space, 0.0) if space < each else 0.0
        return NotPlanned.of(MigrationCode.NO_ROOM, tokens=each, room=room)
    return _by_count(view, source, destination, "LCR", count)


def _by_count(  # noqa: PLR0917 - one argument for each fact
    view: LoadView, source: int, destination: int, order: MigrationOrder, count: int, value: float | None = None
) -> MigrationAmount | NotPlanned:
    """Return an amount of ``count`` requests, as far as there is room; ``value`` is that number unless given."""
    each, space = view.tokens_per_request(source), free_tokens(view, destination)
    if space < each:
        return NotPlanned.of(MigrationCode.NO_ROOM, tokens=each, room=max(space, 0.0))
    rule: MigrationRule = "NUM_REQ"
    known = not isnan(space)
    count = min(count, int(space // each)) if known else count
    value = float(count) if value is None else value
    return MigrationAmount(rule, order, value, count, int(each * count), int(space) if known else None)


def requests_within_slo(view: LoadView, row: int, each: float, limit: int) -> int:
    """Return the requests of ``each`` tokens that a worker can receive and meet the time per output token."""
    within = (_tpot_with(view, row, each, 1.0, limit) < _tpot_max_ms(view)).nonzero()[0]
    count = int(within[-1]) + 1 if len(within) else 0
    space = free_tokens(view, row)
    return count if isnan(space) else min(count, int(space // each))


def _tpot_max_ms(view: LoadView) -> float:
    return view.knobs.tpot_slo_dispatch_threshold * view.tpot_slo_ms


def _tpot_with(view: LoadView, row: int, tokens: float, requests: float, limit: int) -> FloatArray:
    """Return the times per output token in ms with 1 to ``limit`` more (or fewer) requests of ``tokens`` each.

    Both ``tokens`` and ``requests`` (1 or -1) are negative for fewer requests.
    """
    count = np.arange(1.0, min(max(limit, 1), REQUESTS_MAX) + 1.0)
    batch = view.metric("decode_batch_size")[row] + requests * count
    total = view.metric("all_decodes_tokens_num")[row] + tokens * count
    return predicted_tpot(view.tpot, batch, np.maximum(total, 0.0))
