"""Load of the workers of a group at one time: load metrics, free slots and failures."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import isnan
from typing import Final

import numpy as np

from loadline.core.engines.arrays import FloatArray, Mask, Rows
from loadline.core.engines.tpot import TpotModel, predicted_tpot
from loadline.core.migration.columns import BUSY_SLOTS, IN_REQUESTS, IN_TOKENS, OPPOSITE, OUT_REQUESTS, OUT_TOKENS
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

_OF_RESERVATIONS: Final = ("with_movable", "with_free_in")
"""Cached properties that follow from the arrays in which a reservation changes two places."""
_SORTED_MAX: Final = 256
"""Workers up to which all are sorted even if few are needed."""

Command = tuple[int, int, int]
"""Rows of the source and the destination of a command, and its requests."""


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

    def add_commands(self, commands: Sequence[Command]) -> None:
        """Add the requests of commands that were just sent to the loads. ``reserve`` has added all else."""
        added = self.requests_in_flight
        for source, destination, requests in commands:
            added[source] -= requests
            added[destination] += requests
        self._metrics.clear()
        self.__dict__.pop("tpot_ms", None)

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
        """Requests that each worker can receive now; 0 while it sends, since migrations must not form chains."""
        found: FloatArray = self._free[0]
        return found

    @cached_property
    def free_out(self) -> FloatArray:
        """Requests that each worker can send now; 0 while it receives."""
        found: FloatArray = self._free[1]
        return found

    @cached_property
    def _free(self) -> FloatArray:
        """Free slots of each worker, to receive and to send; none of workers that get no commands.

        The migrations in flight may exceed the slots of a worker after a takeover, or if it reports fewer than before.
        """
        columns, in_flight = self.columns, self.columns.in_flight
        slots = np.minimum(columns.measures[SLOTS_IN : SLOTS_OUT + 1], self.knobs.migrations_per_worker_max)
        none = (in_flight[OPPOSITE] > 0.0) | columns.excluded | (columns.breaker_open_until_ms > self.now)
        return np.where(none, 0.0, np.maximum(slots - in_flight[BUSY_SLOTS], 0.0))

    @cached_property
    def movable(self) -> FloatArray:
        """Requests of each worker that can migrate and that no command includes yet."""
        movable: FloatArray = self.measure(REQUESTS) - self.measure(UNMOVABLE) - self.in_flight(OUT_REQUESTS)
        return np.maximum(movable, 0.0)

    @cached_property
    def with_movable(self) -> Mask:
        """Workers that have a request that can migrate."""
        found: Mask = self.movable >= 1.0
        return found

    @cached_property
    def with_free_in(self) -> Mask:
        """Workers that can receive a request."""
        found: Mask = self.free_in >= 1.0
        return found

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

    def sendable(self, row: int) -> float:
        """Return the requests that a worker can send now."""
        return min(self.free_out.item(row), self.movable.item(row))

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

    def pairs_reserved(self) -> None:
        """Forget what follows from the arrays in which ``reserve`` changes two places each."""
        for name in _OF_RESERVATIONS:
            self.__dict__.pop(name, None)

    def ordered(self, rows: Rows, by: MetricName, limit: int, *, descending: bool) -> Rows:
        """Return the first ``limit`` workers that have a metric, ordered by it, then by name."""
        values = self.metric(by)[rows]
        known = values == values  # noqa: PLR0124 - false of NaN
        found, keys = rows[known], -values[known] if descending else values[known]
        if 0 < limit < len(found) > _SORTED_MAX:  # a partition of thousands is ten times as fast as a sort
            among = keys <= np.partition(keys, limit - 1)[limit - 1]
            found, keys = found[among], keys[among]
        first: Rows = found[np.lexsort((self.table.ranks[found], keys))][:limit]
        return first


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
