"""Desired replicas of pools, as the leader decides and reports them."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from loadline.core.vocabulary.status import AgentStatus
from loadline.wire.messages import ScalingDecision


class DesiredCounts:
    """Newest desired count of each pool of some models, while their leader is heard.

    A decision brings counts at once; the status of the leader confirms them every second. A status lowers none unless a
    decision of the same term came before: a leader that has lost decisions with etcd's data counts registered workers.

    Args:
        models: Models whose counts are kept.
        hold_s: Time that they are kept without news of their model.
        now: Monotonic time in seconds.
    """

    def __init__(self, models: Sequence[str], hold_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._models = {model: _ModelCounts() for model in models}
        self._hold_s = hold_s
        self._now = now

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return sorted(self._models)

    @property
    def known(self) -> bool:
        """True if the count of any pool is known."""
        return any(self.count(model, pool) is not None for model, kept in self._models.items() for pool in kept.pools)

    def pools(self, model: str) -> list[str]:
        """Return the pools of a model; empty: its leader was not heard yet."""
        return sorted(self._models[model].pools)

    def count(self, model: str, pool: str) -> int | None:
        """Return the desired replicas of a pool; None: unknown, or not confirmed in time."""
        kept = self._models[model]
        return kept.counts.get(pool) if kept.expires_s >= self._now() else None

    def changed(self, model: str) -> asyncio.Event:
        """Return the event of the next change of a model's counts; take it before they are read."""
        return self._models[model].changed

    def wake(self) -> None:
        """Set the event of each model's next change."""
        for kept in self._models.values():
            kept.wake()

    def apply_decision(self, decision: ScalingDecision) -> None:
        """Take the counts of a decision, each of which is newer than the one before."""
        kept = self._models[decision.model]
        kept.newest = (decision.epoch, decision.sequence)
        kept.decided_epoch = decision.epoch
        counts = {target.pool: target.replicas for target in decision.targets}
        self._replace(kept, counts.keys() | kept.pools, counts)

    def apply_status(self, status: AgentStatus) -> None:
        """Take the counts that a leader reports, unless it is an older one or the newest decision is missing in it.

        An older number counts once nothing has confirmed the counts in time: no leader has the newest, which somebody
        has forged or etcd has lost.
        """
        for reported in status.models:
            kept = self._models.get(reported.model)
            epoch = reported.epoch or status.epoch  # agents before version 0.2 report the latter only
            number = (epoch, reported.decision.sequence if reported.decision else 0)
            if kept is None or (number < kept.newest and kept.expires_s >= self._now()):
                continue
            kept.newest = number
            counts = {pool.pool: n for pool in reported.pools if (n := reported.replicas(pool)) is not None}
            if epoch != kept.decided_epoch:
                counts = {pool: max(n, kept.counts.get(pool, 0)) for pool, n in counts.items()}
            self._replace(kept, {pool.pool for pool in reported.pools}, counts)

    def _replace(self, kept: "_ModelCounts", pools: AbstractSet[str], counts: Mapping[str, int]) -> None:
        """Set names of pools and counts; without counts, the present ones stay until their time is over."""
        now_s = self._now()
        before = (kept.pools, kept.counts, kept.expires_s >= now_s)
        kept.pools = frozenset(pools)
        if counts:
            kept.counts, kept.expires_s = dict(counts), now_s + self._hold_s
        if before != (kept.pools, kept.counts, kept.expires_s >= now_s):
            kept.wake()


class _ModelCounts:
    """Counts of one model."""

    def __init__(self) -> None:
        self.pools: frozenset[str] = frozenset()
        self.counts: Mapping[str, int] = {}
        self.expires_s = float("-inf")
        self.newest = (0, 0)
        """Epoch of the leader, and number of the decision, that the counts belong to."""
        self.decided_epoch = 0
        """Epoch of the newest decision; 0: there was none."""
        self.changed = asyncio.Event()

    def wake(self) -> None:
        """Set the event of the next change; who has not taken it yet waits for the one after."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
