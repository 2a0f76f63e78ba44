"""A look at a board at one moment: metrics of load with what moves in flight mean, free slots, and who fails."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

import numpy as np

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
    Mask,
    Numbers,
    Rows,
)
from loadline.core.migration.knobs import MetricName, MigrationKnobs
from loadline.core.migration.load_metrics import (
    BATCH,
    DECODE_TOKENS,
    DECODING,
    DECODING_TOKENS,
    NEED,
    PREFILL_TOKENS,
    REQUESTS,
    SLOTS_IN,
    SLOTS_OUT,
    TOTAL,
    UNMOVABLE,
    WAITING,
)
from loadline.core.migration.worker_table import WorkerTable


class LoadView:
    """Everything that policies ask of the workers of a board. Where a load is not known it is NaN.

    Args:
        board: The workers.
        knobs: What the rescheduler of the model goes by.
        failing: Who fails, by itself or with its node or unit.
        leaving: Who drains, or will as soon as a decision stands.
        tpot: Gives times per output token; None: they are not known.
        itl_ms: The objective of the model.
        fresh_after_ms: Who reported before this time is not fresh.
        left_ms: Gives how long a request goes on, on average; None: that is not known.
        soon_ready_ms: When the next worker of the group is ready, from now; None: none is expected.
        now: Time in ms.
    """

    def __init__(
        self,
        table: WorkerTable,
        knobs: MigrationKnobs,
        *,
        failing: Mask,
        leaving: Mask,
        tpot: TpotModel | None,
        itl_ms: float,
        fresh_after_ms: int,
        now: int,
        left_ms: Callable[[], float | None],
        next_ready_ms: float | None = None,
    ) -> None:
        self.table = table
        self.columns = table.columns
        self.knobs = knobs
        self.failing = failing
        self.leaving = leaving
        self.tpot = tpot
        self.tpot_slo_ms = itl_ms if knobs.tpot_slo is None else knobs.tpot_slo
        self.now = now
        self._left_ms = left_ms
        self.next_ready_ms = next_ready_ms
        self.share = np.inf
        """Requests that a pair moves at most, so that others have some too."""
        self._fresh_after_ms = fresh_after_ms
        self._metrics: dict[MetricName, Numbers] = {}

    def measure(self, name: int) -> Numbers:
        """A measure as it was reported."""
        found: Numbers = self.columns.measures[name]
        return found

    def moving(self, name: int) -> Numbers:
        """What moves in flight mean."""
        found: Numbers = self.columns.moving[name]
        return found

    def metric(self, name: MetricName) -> Numbers:
        """A metric of load, as it will be when the moves in flight have ended."""
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = METRICS[name](self)
        return found

    @cached_property
    def tpot_ms(self) -> Numbers:
        """The same of all workers: reckoned when they were heard, but for those that moves in flight concern."""
        found = self.columns.tpot_ms.copy()
        rows = np.flatnonzero((self.tokens_moving != 0.0) | (self.requests_moving != 0.0))
        if len(rows):
            batch, tokens = self.metric("decode_batch_size")[rows], self.metric("all_decodes_tokens_num")[rows]
            found[rows] = predicted_tpot(self.tpot, batch, tokens)
        return found

    @cached_property
    def left_ms(self) -> float | None:
        """How long a request goes on, on average; None: that is not known."""
        return self._left_ms()

    @cached_property
    def tokens_moving(self) -> Numbers:
        """Tokens that moves in flight bring, less those that they take."""
        value: Numbers = self.moving(IN_TOKENS) - self.moving(OUT_TOKENS)
        return value

    @cached_property
    def requests_moving(self) -> Numbers:
        """Requests that moves in flight bring, less those that they take."""
        value: Numbers = self.moving(IN_REQUESTS) - self.moving(OUT_REQUESTS)
        return value

    @cached_property
    def serving(self) -> Mask:
        """Who is ready, heard lately, to be given work, and not on its way out."""
        columns = self.columns
        fresh = columns.seen_at_ms >= self._fresh_after_ms
        found: Mask = columns.alive & columns.schedulable & fresh & ~self.leaving
        return found

    @cached_property
    def sound(self) -> Mask:
        """Who serves, and fails neither by itself nor with its node or unit."""
        found: Mask = self.serving & ~self.failing
        return found

    @cached_property
    def free_in(self) -> Numbers:
        """Requests that each can take in now; none while it gives some away, for it would be a link of a chain.

        And none where more are under way than it has slots, as after a takeover, or where it has fewer than before.
        """
        most: Numbers = np.minimum(self.measure(SLOTS_IN), self.knobs.migrations_per_worker_max)
        free = np.where(self.moving(SENDING) > 0.0, 0.0, most - self.moving(IN_SLOTS))
        return np.maximum(np.where(self._asked, free, 0.0), 0.0)

    @cached_property
    def free_out(self) -> Numbers:
        """Requests that each can give away now; none while it takes some in."""
        most: Numbers = np.minimum(self.measure(SLOTS_OUT), self.knobs.migrations_per_worker_max)
        free = np.where(self.moving(RECEIVING) > 0.0, 0.0, most - self.moving(OUT_SLOTS))
        return np.maximum(np.where(self._asked, free, 0.0), 0.0)

    @cached_property
    def _asked(self) -> Mask:
        found: Mask = ~self.columns.excluded & (self.columns.breaker_open_until_ms <= self.now)
        return found

    @cached_property
    def movable(self) -> Numbers:
        """Requests of each that may still be asked to move."""
        movable: Numbers = self.measure(REQUESTS) - self.measure(UNMOVABLE) - self.moving(OUT_REQUESTS)
        return np.maximum(movable, 0.0)

    def tokens_per_request(self, row: int) -> float:
        """Tokens of an average request of those that move; one where that is not known.

        These are those that decode, where any do: who waits is mostly of another length, and stays.
        """
        measures = self.columns.measures
        decoding = float(measures[DECODING, row])
        if decoding >= 1.0 and measures[DECODING_TOKENS, row] > 0.0:
            return max(1.0, float(measures[DECODING_TOKENS, row]) / decoding)
        tokens = np.fmax(measures[NEED, row], measures[DECODE_TOKENS, row])
        each = float(tokens) / max(float(measures[REQUESTS, row]), 1.0)
        return max(1.0, each)  # what is no number is not greater

    def can_send(self, row: int) -> bool:
        """Whether a worker has a request left that may move now."""
        return bool(self.free_out[row] >= 1.0 and self.movable[row] >= 1.0)

    def can_receive(self, row: int) -> bool:
        """Whether a worker has a slot left."""
        return bool(self.free_in[row] >= 1.0)

    def take(self, source: int, destination: int, requests: int, tokens: int) -> None:
        """So much is asked to move: neither end is to be a link of a chain, and slots and room are used up."""
        self.tokens_moving[source] -= tokens
        self.tokens_moving[destination] += tokens
        self.free_out[source] -= requests
        self.movable[source] -= requests
        self.free_in[destination] -= requests
        self.free_in[source] = self.free_out[destination] = 0.0

    def ordered(self, rows: Mask, by: MetricName, most: int, *, descending: bool) -> Rows:
        """The first of some workers by a metric, those that are equal by name; who has none is left out."""
        found: Rows = np.flatnonzero(rows)
        values = self.metric(by)[found]
        known = values == values  # noqa: PLR0124 - false of NaN
        found, keys = found[known], -values[known] if descending else values[known]
        if most < len(found):  # of thousands only some are needed: to find the last of them is ten times as fast
            among = keys <= np.partition(keys, most - 1)[most - 1] if most else np.zeros(len(keys), dtype=np.bool_)
            found, keys = found[among], keys[among]
        return found[np.lexsort((self.table.ranks[found], keys))][:most]


METRICS: Final[Mapping[MetricName, Callable[[LoadView], Numbers]]] = {
    "kv_cache_usage_ratio_projected": lambda view: (view.measure(NEED) + view.tokens_moving) / view.measure(TOTAL),
    "decode_batch_size": lambda view: view.measure(BATCH) + view.requests_moving,
    "all_decodes_tokens_num": lambda view: view.measure(DECODE_TOKENS) + view.tokens_moving,
    "all_prefills_tokens_num": lambda view: view.measure(PREFILL_TOKENS),
    "num_waiting_requests": lambda view: view.measure(WAITING),
    "num_requests": lambda view: view.measure(REQUESTS) + view.requests_moving,
    "num_tokens": lambda view: view.measure(DECODE_TOKENS) + view.measure(PREFILL_TOKENS) + view.tokens_moving,
    "predicted_tpot": lambda view: view.tpot_ms,
}
"""Load of each worker, NaN where it is not known. What is measured in tokens or requests counts moves in flight."""
