"""Requests of a decode pool that stay in its batches until a worker requested now is ready.

A reasoning model answers for a minute or more. A burst of a few seconds then adds some requests to the batches, but
does not set how full they are a start-up time later, as it does where a request takes a second. Of the present requests
a part ``exp(-lead / residual)`` is still there after a lead time, and the arrivals until then fill the rest.
"""

from math import exp
from typing import Final

from msgspec import Struct

from loadline.core.fleet.pool import Pool
from loadline.core.planning.sizing.evidence.saturation import SaturationEvidence

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
    def of(
        cls, pool: Pool, queues: SaturationEvidence, osl_tokens: float, itl_limit_ms: float, lead_ms: int
    ) -> "BatchFlow":
        """Return the flow of a decode pool; arrivals alone count for other roles, and while anything is unknown.

        Args:
            pool: The pool.
            queues: Recent latencies and queues of the pool; requests that wait for prefill workers are not in these.
            osl_tokens: Output of a request.
            itl_limit_ms: ITL of a worker at its capacity. A higher one is an overload, in which the present requests
                must not count as ones that may take so long.
            lead_ms: Time until a worker requested now is ready.
        """
        if pool.knobs.role != "decode" or not pool.load.running or pool.fresh < pool.ready:
            return cls()  # some engines report no running requests, and a silent worker may have many
        request_ms = osl_tokens * min(queues.itl_ms, itl_limit_ms)
        if not request_ms:
            return cls()
        present = pool.load.running + queues.waiting[-1]
        return cls(exp(-max(lead_ms, _LEAD_MIN_MS) / (_RESIDUAL * request_ms)), present * 1_000.0 / request_ms)

    def count(self, arrivals: float, seconds: float = 1.0) -> float:
        """Return the requests to provide for, of the arrivals of some seconds and the present requests."""
        return self.staying * self.present_per_s * seconds + (1.0 - self.staying) * arrivals
