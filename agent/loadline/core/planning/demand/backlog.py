"""Waiting requests as a demand in addition to the arrivals."""

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.vocabulary.scalars import Role


class Backlog(Struct):
    """Waiting requests by role."""

    waiting: dict[Role, int] = field(default_factory=dict)
    """Requests at workers of the role; those that no worker has accepted count as prefill, or aggregated requests."""

    @classmethod
    def of(cls, model: Model, now: int) -> "Backlog":
        """Return the backlog of a model at ``now`` (ms)."""
        backlog = cls()
        backlog.update(model, now)
        return backlog

    def update(self, model: Model, now: int) -> None:
        """Count the requests that wait at ``now`` (ms)."""
        waiting: dict[Role, int] = {}
        for pool in model.pools.values():
            waiting[pool.knobs.role] = waiting.get(pool.knobs.role, 0) + pool.load.waiting
        first_role: Role = next((role for role in waiting if role != "decode"), "decode")
        waiting[first_role] += model.traffic.queued(now)
        self.waiting = waiting

    def requests_per_s(self, role: Role, arriving: float, ttft_ms: float, drain_ms: int) -> float:
        """Return the rate that serves the backlog of a role within ``drain_ms``, in requests/s.

        Args:
            role: The role.
            arriving: Arrivals in requests/s. As many as arrive within the TTFT are no backlog: none of them waits
                longer than the TTFT.
            ttft_ms: TTFT objective.
            drain_ms: Time in which the backlog should be served.
        """
        backlog = self.waiting.get(role, 0) - arriving * ttft_ms / 1_000.0
        return max(0.0, backlog) * 1_000.0 / drain_ms
