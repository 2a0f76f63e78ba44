"""Requests of a decode pool that stay in its batches until a worker requested now is ready.

A reasoning model answers for a minute or more. A burst of a few seconds then adds some requests to the batches, but
does not set how full they are a start-up time later, as it does where a request takes a second. Of the present requests
a part ``exp(-lead / residual)`` is still there after a lead time, and the arrivals until then fill the rest.
"""

from math import exp
from typing import Final

from msgspec import Struct

from loadline.core.fleet.pool import Pool
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.planning.sizing.request_lengths import Lengths

_RESIDUAL: Final = 1.5
"""Ratio of the time that requests in a batch still take to the duration of a new one: long outputs are most of a batch.
It is ``(1 + cv^2) / 2`` by renewal theory, and ``cv^2`` of the outputs of a reasoning model is 1.9."""
_LEAD_MIN_MS: Final = 20_000
"""Shortest lead time: a count has to do for longer than a worker that starts at once takes."""


class BatchFlow(Struct, frozen=True):
    """Present requests of a pool, as far as they count for a worker requested now."""

    staying: float = 0.0
    """Part (0..1) of the present requests that are still there when the worker is ready."""
    present_per_s: float = 0.0
    """Requests/s that keep as many in the batches, by Little's law."""

    @classmethod
    def of(cls, pool: Pool, evidence: PoolEvidence, lengths: Lengths, lead_ms: int) -> "BatchFlow":
        """Return the flow of a decode pool; arrivals alone count for other roles, and while a duration is unknown.

        Args:
            pool: The pool.
            evidence: Tells the ITL, the batches, and the queues; not those of requests that wait for prefill workers.
            lengths: Tell the output of a request in tokens.
            lead_ms: Time until a worker requested now is ready.
        """
        request_ms = lengths.osl_tokens * evidence.itl.latest_ms
        queues = evidence.queues
        if pool.knobs.role != "decode" or not queues.waiting or not request_ms:
            return cls()
        present = pool.load.running + queues.waiting[-1]  # a new worker that does not report yet has none
        return cls(exp(-max(lead_ms, _LEAD_MIN_MS) / (_RESIDUAL * request_ms)), present * 1_000.0 / request_ms)

    def count(self, arrivals_per_s: float) -> float:
        """Return the requests/s to provide for, of some arrivals and the present requests."""
        return self.staying * self.present_per_s + (1.0 - self.staying) * arrivals_per_s
