"""How much a move between two workers takes, and whether it pays: gain, time to copy, what is left to do, and room."""

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from loadline.core.engines.tpot import predicted_tpot
from loadline.core.migration.columns import Numbers
from loadline.core.migration.knobs import MetricName
from loadline.core.migration.load_metrics import NEED, TOTAL
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.outcomes import MigrationAmount, MigrationCode, NotPlanned
from loadline.core.vocabulary.migrations import ALL_REQUESTS, MigrationOrder, MigrationRule

Sizer = Callable[[LoadView, int, int], MigrationAmount | NotPlanned]
"""What a move from one row to another takes, or why there is none."""

TOKENS_MAX: Final = 1e12
"""No worker has so many: what says so is bounded before it is sent."""
SOON_MS: Final = 2_000.0
"""A move takes about so long until it is felt: a worker that is ready sooner takes what comes, and it stays."""
_COPY_SHARE: Final = 0.5
"""Of the time that a request has left: to copy for longer is to move what is nearly over."""
_KV: Final = "kv_cache_usage_ratio_projected"
_ROUNDING: Final = 1e-9
"""Of a difference of loads: 1.0 less 0.3 is to be 0.7."""


def slots_between(view: LoadView, source: int, destination: int) -> int:
    """Requests that may move between two workers at a time."""
    return int(min(view.free_out[source], view.free_in[destination], view.movable[source], view.share))


def free_tokens(view: LoadView, row: int, most: float = 1.0) -> float:
    """Tokens that a worker can take until its KV cache is so full (0..1); NaN where that is not known."""
    return min(float(view.measure(TOTAL)[row] * most - view.measure(NEED)[row] - view.tokens_moving[row]), TOKENS_MAX)


def size_for_balance(metric: MetricName, threshold: float) -> Sizer:
    """Half of what two workers are apart, so that they end up alike; the destination stays below the threshold."""

    def fits(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
        load, knobs = view.metric(metric), view.knobs
        each, apart = view.tokens_per_request(source), float(load[source] - load[destination])
        total = float(view.measure(TOTAL)[[source, destination]].min())
        tokens = _tokens(metric, apart, each, total)
        if apart < knobs.load_balance_threshold - _ROUNDING or tokens <= each:
            least = max(knobs.load_balance_threshold, apart * each / tokens)
            loads = {"source": float(load[source]), "destination": float(load[destination])}
            return NotPlanned.of(MigrationCode.GAP_TOO_SMALL, **loads, least=least)
        why = _waits(view) or _hardly_pays(view, each)
        if why is not None:
            return why
        by_kv = metric == _KV
        most = threshold if by_kv and 0.0 < threshold < 1.0 else 1.0
        space = free_tokens(view, destination, most)
        if space < each:
            return NotPlanned.of(MigrationCode.NO_ROOM, tokens=each, room=max(space, 0.0))
        count = slots_between(view, source, destination)
        least = _tokens(metric, knobs.load_balance_threshold, each, total)
        return _sized(view, source, tokens, min(least, tokens), space, count)

    return fits


def _tokens(metric: MetricName, apart: float, each: float, total: float) -> float:
    """A difference of loads, in tokens of caches of ``total``. Of times none is known: two requests, so one moves."""
    if metric == "predicted_tpot":
        return 2.0 * each
    if metric == _KV:
        return min(apart * total, TOKENS_MAX)
    in_tokens = metric.endswith("tokens_num") or metric == "num_tokens"
    return min(apart * (1.0 if in_tokens else each), TOKENS_MAX)


def _sized(view: LoadView, source: int, apart: float, least_apart: float, space: float, count: int) -> MigrationAmount:  # noqa: PLR0917 - one argument for each fact
    """Half of so many tokens that two workers are ``apart``, or the least amount that is asked for.

    That least takes no more than leaves the two less than ``least_apart`` the other way round: else it would come back.
    """
    knobs, total, each = view.knobs, float(view.measure(TOTAL)[source]), view.tokens_per_request(source)
    rule, order, least = (
        knobs.req_select_rule,
        knobs.req_select_order,
        knobs.req_select_value,
    )
    tokens_max = None if np.isnan(space) else int(space)
    most = (apart + least_apart) / 2.0 - each
    if rule == "NUM_REQ":
        count = min(count, max(int(most / each), 1), count if least < 0.0 else max(int(least), 1))
        return MigrationAmount(rule, order, least, count, int(each * count), tokens_max)
    if rule == "RATIO" and not view.table.reports_capacity(
        source
    ):  # it knows no share of a cache that it does not know
        rule, least = "TOKEN", 0.0
    floor = least * total if rule == "RATIO" else least
    tokens = min(max(apart / 2.0, min(floor, most)), np.inf if np.isnan(space) else space)
    value = tokens / total if rule == "RATIO" else tokens
    # Orders that take short ones first take more of them: twice as many as there are on average.
    count = min(count, max(int(np.ceil(2.0 * tokens / each)), 1))
    return MigrationAmount(rule, order, value, count, int(min(tokens, each * count)), tokens_max)


def _waits(view: LoadView) -> NotPlanned | None:
    soon_ms = view.next_ready_ms
    if soon_ms is None or soon_ms > SOON_MS:
        return None
    return NotPlanned.of(MigrationCode.WORKER_SOON_READY, left_ms=soon_ms)


def _hardly_pays(view: LoadView, tokens: float) -> NotPlanned | None:
    """Why a request of so many tokens is better left where it is; None: it is not."""
    left_ms, copy_ms = view.left_ms, view.knobs.copy_ms(tokens)
    if left_ms is None or copy_ms <= _COPY_SHARE * left_ms:
        return None
    return NotPlanned.of(MigrationCode.FINISHES_SOONER, copy_ms=copy_ms, left_ms=left_ms)


def size_for_evacuation(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
    """All requests that there are slots and room for, those that wait first: the source has to be empty."""
    found = _counted(view, source, destination, "LR", slots_between(view, source, destination))
    return found if isinstance(found, NotPlanned) else replace(found, value=ALL_REQUESTS)


def size_for_drain(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
    """The same of a worker that could finish them by itself: where that is sooner, it does."""
    return _hardly_pays(view, view.tokens_per_request(source)) or size_for_evacuation(view, source, destination)


def size_for_mitigation(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
    """As many as bring the source within the time per output token, and leave the destination within it."""
    each, most = view.tokens_per_request(source), slots_between(view, source, destination)
    over = np.flatnonzero(~(_tpot_with(view, source, -each, -1.0, most) < _within_ms(view)))
    return _packed(view, source, destination, min(len(over) + 1, most))


def size_for_consolidation(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
    """As many as leave the destination within the time per output token."""
    return _packed(view, source, destination, slots_between(view, source, destination))


def _packed(view: LoadView, source: int, destination: int, most: int) -> MigrationAmount | NotPlanned:
    each = view.tokens_per_request(source)
    why = _waits(view) or _hardly_pays(view, each)
    if why is not None:
        return why
    takes = requests_within_slo(view, destination, each, most)
    if takes < 1:
        return NotPlanned.of(MigrationCode.NO_ROOM, tokens=each, room=max(free_tokens(view, destination), 0.0))
    return _counted(view, source, destination, "LCR", takes)


def _counted(
    view: LoadView, source: int, destination: int, order: MigrationOrder, count: int
) -> MigrationAmount | NotPlanned:
    each, space = view.tokens_per_request(source), free_tokens(view, destination)
    if space < each:
        return NotPlanned.of(MigrationCode.NO_ROOM, tokens=each, room=max(space, 0.0))
    rule: MigrationRule = "NUM_REQ"
    known = not np.isnan(space)
    count = min(count, int(space // each)) if known else count
    return MigrationAmount(rule, order, float(count), count, int(each * count), int(space) if known else None)


def requests_within_slo(view: LoadView, row: int, each: float, most: int) -> int:
    """Requests of so many tokens, at most ``most``, that a worker can take and stay within its time per token."""
    fit = np.flatnonzero(_tpot_with(view, row, each, 1.0, most) < _within_ms(view))
    count = int(fit[-1]) + 1 if len(fit) else 0
    space = free_tokens(view, row)
    return count if np.isnan(space) else min(count, int(space // each))


def _within_ms(view: LoadView) -> float:
    return view.knobs.tpot_slo_dispatch_threshold * view.tpot_slo_ms


def _tpot_with(view: LoadView, row: int, tokens: float, requests: float, most: int) -> Numbers:
    """Time per output token with 1, 2, ... ``most`` requests of so many tokens more (or less), in ms."""
    more = np.arange(1.0, max(most, 1) + 1.0)
    batch = view.metric("decode_batch_size")[row] + requests * more
    held = view.metric("all_decodes_tokens_num")[row] + tokens * more
    return predicted_tpot(view.tpot, batch, np.maximum(held, 0.0))
