"""Load of the workers of a group at one time: load metrics, free slots and failures."""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import isnan
from typing import Final

import numpy as np

from loadline.core.engines.arrays import FloatArray, Mask, Rows
from loadline.core.engines.tpot import TpotModel, predicted_tpot
from loadline.core.migration.columns import (
    IN_REQUESTS,
    IN_SLOTS,
    IN_TOKENS,
    OUT_REQUESTS,
    OUT_SLOTS,
    OUT_TOKENS,
    RECEIVING,
    SENDING,
)
from loadline.core.migration.knobs import MetricName, MigrationKnobs
from loadline.core.migration.measures import (
    BATCH,
    DECODE_TOKENS,
    DECODING,
    DECODING_TOKENS,
    KV_NEEDED,
    KV_TOTAL,
    PREFILL_TOKENS,
    REQUESTS,
    SLOTS_IN,
    SLOTS_OUT,
    UNMOVABLE,
    WAITING,
)
from loadline.core.migration.worker_table import WorkerTable

_OF_MIGRATIONS: Final = ("tpot_ms", "tokens_in_flight", "requests_in_flight", "free_in", "free_out", "movable")
"""Cached properties of a view that depend on the migrations in flight."""


class LoadView:
    """View of a worker table that policies evaluate. An unknown load is NaN.

    Args:
        table: The workers.
        knobs: Knobs of the model.
        failed: Workers affected by a failure.
        leaving: Workers that drain, or will drain by a decision that is being committed or announced.
        tpot: Model of the time per output token; None if there is none.
        itl_ms: Objective of the model for the inter-token latency.
        fresh_after_ms: Time of the oldest report that is fresh.
        now: Time in ms.
        remaining_ms: Function that returns the mean remaining time of a request, or None if it is unknown.
        next_ready_ms: Time until the next pending worker of the group is ready; None if none is expected.
    """

    def __init__(
        self,
        table: WorkerTable,
        knobs: MigrationKnobs,
        *,
        failed: Mask,
        leaving: Mask,
        tpot: TpotModel | None,
        itl_ms: float,
        fresh_after_ms: int,
        now: int,
        remaining_ms: Callable[[], float | None],
        next_ready_ms: float | None = None,
    ) -> None:
        self.table = table
        self.columns = table.columns
        self.knobs = knobs
        self.failed = failed
        self.leaving = leaving
        self.tpot = tpot
        self.tpot_slo_ms = itl_ms if knobs.tpot_slo is None else knobs.tpot_slo
        self.now = now
        self.next_ready_ms = next_ready_ms
        self.pair_requests_max = np.inf
        """Maximum requests of one pair, so that other destinations receive some too."""
        self._remaining_ms = remaining_ms
        self._fresh_after_ms = fresh_after_ms
        self._metrics: dict[MetricName, FloatArray] = {}

    def migrations_changed(self) -> None:
        """Drop everything computed from the migrations in flight, whose effect has changed in the table."""
        self._metrics.clear()
        for name in _OF_MIGRATIONS:
            self.__dict__.pop(name, None)

    def measure(self, row: int) -> FloatArray:
        """Return a measure of ``measures``, as reported."""
        found: FloatArray = self.columns.measures[row]
        return found

    @cached_property
    def measure_of(self) -> Callable[[int, int], float]:
        """Function of a measure and the row of a worker; it takes half the time of an array's element."""
        found: Callable[[int, int], float] = self.columns.measures.item
        return found

    def in_flight(self, row: int) -> FloatArray:
        """Return an effect of the migrations in flight, by a row of ``columns``."""
        found: FloatArray = self.columns.in_flight[row]
        return found

    def metric(self, name: MetricName) -> FloatArray:
        """Return a load metric as it will be after the migrations in flight, computed once."""
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = METRICS[name](self)
        return found

    @cached_property
    def tpot_ms(self) -> FloatArray:
        """Predicted time per output token in ms, recomputed only for workers with migrations in flight."""
        found = self.columns.tpot_ms.copy()
        rows = ((self.tokens_in_flight != 0.0) | (self.requests_in_flight != 0.0)).nonzero()[0]
        if len(rows):
            batch, tokens = self.metric("decode_batch_size")[rows], self.metric("all_decodes_tokens_num")[rows]
            found[rows] = predicted_tpot(self.tpot, batch, tokens)
        return found

    @cached_property
    def remaining_ms(self) -> float | None:
        """Mean remaining time of a request; None if unknown."""
        return self._remaining_ms()

    @cached_property
    def tokens_in_flight(self) -> FloatArray:
        """Tokens that migrations in flight add to each worker, minus those that they remove."""
        value: FloatArray = self.in_flight(IN_TOKENS) - self.in_flight(OUT_TOKENS)
        return value

    @cached_property
    def requests_in_flight(self) -> FloatArray:
        """Requests that migrations in flight add to each worker, minus those that they remove."""
        value: FloatArray = self.in_flight(IN_REQUESTS) - self.in_flight(OUT_REQUESTS)
        return value

    @cached_property
    def serving(self) -> Mask:
        """Workers that are ready, fresh and schedulable, and not leaving."""
        columns = self.columns
        fresh = columns.seen_at_ms >= self._fresh_after_ms
        found: Mask = columns.alive & columns.schedulable & fresh & ~self.leaving
        return found

    @cached_property
    def healthy(self) -> Mask:
        """Workers that serve and are not affected by a failure."""
        found: Mask = self.serving & ~self.failed
        return found

    @cached_property
    def free_in(self) -> FloatArray:
        """Requests that each worker can receive now.

        0 while it sends, since migrations must not form chains. The migrations in flight may exceed its slots after a
        takeover, or if it reports fewer slots than before; it then receives none either.
        """
        free = np.where(self.in_flight(SENDING) > 0.0, 0.0, self._slots_in - self.in_flight(IN_SLOTS))
        return np.maximum(free, 0.0)

    @cached_property
    def free_out(self) -> FloatArray:
        """Requests that each worker can send now; 0 while it receives."""
        free = np.where(self.in_flight(RECEIVING) > 0.0, 0.0, self._slots_out - self.in_flight(OUT_SLOTS))
        return np.maximum(free, 0.0)

    @cached_property
    def _slots_in(self) -> FloatArray:
        return self._slots(SLOTS_IN)

    @cached_property
    def _slots_out(self) -> FloatArray:
        return self._slots(SLOTS_OUT)

    def _slots(self, row: int) -> FloatArray:
        """Return the slots of each worker for requests in migration; 0 of workers that get no commands."""
        slots = np.minimum(self.measure(row), self.knobs.migrations_per_worker_max)
        return np.where(self._commandable, slots, 0.0)

    @cached_property
    def _commandable(self) -> Mask:
        found: Mask = ~self.columns.excluded & (self.columns.breaker_open_until_ms <= self.now)
        return found

    @cached_property
    def movable(self) -> FloatArray:
        """Requests of each worker that can migrate and that no command includes yet."""
        movable: FloatArray = self.measure(REQUESTS) - self.measure(UNMOVABLE) - self.in_flight(OUT_REQUESTS)
        return np.maximum(movable, 0.0)

    def tokens_per_request(self, row: int) -> float:
        """Return the mean tokens of a request that can migrate; 1 if unknown.

        Only decoding requests count if there are any, since waiting ones have other lengths and mostly stay.
        """
        measure_of = self.measure_of
        decoding, decoding_tokens = measure_of(DECODING, row), measure_of(DECODING_TOKENS, row)
        if decoding >= 1.0 and decoding_tokens > 0.0:
            return max(1.0, decoding_tokens / decoding)
        needed, held = measure_of(KV_NEEDED, row), measure_of(DECODE_TOKENS, row)
        tokens = needed if needed >= held or isnan(held) else held  # np.fmax takes 5 times as long
        mean = tokens / max(measure_of(REQUESTS, row), 1.0)
        return max(1.0, mean)  # 1 if the mean is NaN, which is not greater

    def can_send(self, row: int) -> bool:
        """Return True if a worker has a request that can migrate now, and a slot for it."""
        return self.free_out.item(row) >= 1.0 and self.movable.item(row) >= 1.0

    def can_receive(self, row: int) -> bool:
        """Return True if a worker has a free slot to receive a request."""
        return self.free_in.item(row) >= 1.0

    def reserve(self, source: int, destination: int, requests: int, tokens: int) -> None:
        """Account for a planned migration, which uses slots and room; from then on, its ends cannot form a chain."""
        self.tokens_in_flight[source] -= tokens
        self.tokens_in_flight[destination] += tokens
        self.free_out[source] -= requests
        self.movable[source] -= requests
        self.free_in[destination] -= requests
        self.free_in[source] = self.free_out[destination] = 0.0

    def ordered(self, rows: Mask, by: MetricName, limit: int, *, descending: bool) -> Rows:
        """Return the first ``limit`` workers that have a metric, ordered by it, then by name."""
        found: Rows = rows.nonzero()[0]
        values = self.metric(by)[found]
        known = values == values  # noqa: PLR0124 - false of NaN
        found, keys = found[known], -values[known] if descending else values[known]
        if limit < len(found):  # a partition of thousands is ten times as fast as a sort
            among = keys <= np.partition(keys, limit - 1)[limit - 1] if limit else np.zeros(len(keys), dtype=np.bool_)
            found, keys = found[among], keys[among]
        return found[np.lexsort((self.table.ranks[found], keys))][:limit]


METRICS: Final[Mapping[MetricName, Callable[[LoadView], FloatArray]]] = {
    "kv_cache_usage_ratio_projected": lambda view: (
        (view.measure(KV_NEEDED) + view.tokens_in_flight) / view.measure(KV_TOTAL)
    ),
    "decode_batch_size": lambda view: view.measure(BATCH) + view.requests_in_flight,
    "all_decodes_tokens_num": lambda view: view.measure(DECODE_TOKENS) + view.tokens_in_flight,
    "all_prefills_tokens_num": lambda view: view.measure(PREFILL_TOKENS),
    "num_waiting_requests": lambda view: view.measure(WAITING),
    "num_requests": lambda view: view.measure(REQUESTS) + view.requests_in_flight,
    "num_tokens": lambda view: view.measure(DECODE_TOKENS) + view.measure(PREFILL_TOKENS) + view.tokens_in_flight,
    "predicted_tpot": lambda view: view.tpot_ms,
}
"""Load metrics by name. The metrics of decode tokens and of requests include the migrations in flight."""
