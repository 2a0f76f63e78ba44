"""Victims of replaced decisions that the current one does not name, though their workers still exist.

The agent ends a drain that takes too long and removes the worker's key, so that later decisions know nothing of it. The
worker is still a replica: without these, a scale-down would remove another one in its place.
"""

from collections.abc import Set as AbstractSet

from loadline.core.vocabulary.decisions import PoolTarget, Victim


class FormerVictims:
    """Former victims of a pool, each with the end of its own drain."""

    def __init__(self) -> None:
        self._ends_s: dict[Victim, float] = {}

    def replace(self, before: PoolTarget, drain_ends_s: float, after: PoolTarget) -> None:
        """Note that a target has replaced another one.

        A target that is higher may have cancelled drains, so that the workers serve again: then none is kept.

        Args:
            before: The replaced target.
            drain_ends_s: Monotonic time at which the drains of its victims end.
            after: The target that has replaced it.
        """
        if after.replicas > before.replicas:
            self._ends_s.clear()
            return
        for victim in before.victims:
            self._ends_s.setdefault(victim, drain_ends_s)
        for victim in after.victims:
            self._ends_s.pop(victim, None)

    def ended(self, now_s: float) -> frozenset[Victim]:
        """Return those whose drain has ended."""
        return frozenset(victim for victim, ends_s in self._ends_s.items() if now_s >= ends_s)

    def keep(self, existing: AbstractSet[str]) -> None:
        """Forget the workers that exist no more."""
        self._ends_s = {victim: ends_s for victim, ends_s in self._ends_s.items() if victim.worker in existing}
