"""Requests that wait for a worker, as a demand beside the arrivals."""

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.vocabulary.scalars import Role


class Backlog(Struct):
    """Waiting requests of each role."""

    waiting: dict[Role, int] = field(default_factory=dict)
    """At the workers of the role; requests that no worker has accepted wait for prefill, if there is such a role."""

    def update(self, model: Model, now: int) -> None:
        """Count the requests that wait at ``now`` (ms)."""
        waiting: dict[Role, int] = {}
        for pool in model.pools.values():
            waiting[pool.knobs.role] = waiting.get(pool.knobs.role, 0) + pool.load.waiting
        first: Role = next((role for role in waiting if role != "decode"), "decode")
        waiting[first] += model.traffic.queued(now)
        self.waiting = waiting

    def requests_per_s(self, role: Role, arriving: float, ttft_ms: float, drain_ms: int) -> float:
        """Return the rate (requests/s) that serves a backlog within ``drain_ms``, beside ``arriving`` ones.

        As many requests as arrive within the TTFT may wait: none of them waits longer than that.
        """
        late = self.waiting.get(role, 0) - arriving * ttft_ms / 1_000.0
        return max(0.0, late) * 1_000.0 / drain_ms
