"""Shrinking of a fault plan to a short one that violates the same invariant."""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from loadline.sim.chaos.invariants import Violation
from loadline.sim.chaos.plan import HOUR_MS, FaultPlan
from loadline.sim.world.bus import BusFaults
from loadline.sim.world.store import StoreFaults

RunPlan = Callable[[FaultPlan], Violation | None]
"""Runs a plan and returns its violation."""

TRIES_MAX: Final = 300
_SLACK_MS: Final = 2_000.0
_SHORTEST_MS: Final = 250.0


class Shrinker:
    """Shrinker of one plan.

    Args:
        run_plan: Runs a plan.
        violated: Invariant that the shrunk plan must violate.
        tries_max: Limit of runs.
    """

    def __init__(self, run_plan: RunPlan, violated: str, tries_max: int = TRIES_MAX) -> None:
        self.tries = 0
        self._run_plan = run_plan
        self._violated = violated
        self._tries_max = tries_max

    def shrink(self, plan: FaultPlan) -> FaultPlan:
        """Return the shortest plan found; the given one if it does not violate the invariant."""
        best = self._attempt(plan)
        if best is None:
            return plan
        for step in (self._fewer_faults, self._fewer_fault_sources, self._shorter_faults, self._fewer_faults):
            best = step(best)
        return best

    def _attempt(self, plan: FaultPlan) -> FaultPlan | None:
        """Return the plan, cut at its violation; None without the violation or after the last try."""
        if self.tries >= self._tries_max:
            return None
        self.tries += 1
        found = self._run_plan(plan)
        if found is None or found.name != self._violated:
            return None
        ends_ms = found.at_ms + _SLACK_MS
        faults = tuple(fault for fault in plan.faults if fault.at_ms <= found.at_ms)
        return replace(plan, hours=min(plan.hours, round(ends_ms / HOUR_MS, 6)), faults=faults)

    def _fewer_faults(self, plan: FaultPlan) -> FaultPlan:
        """Remove halves, then quarters, down to single faults."""
        size = len(plan.faults)
        while size >= 1:
            begin = 0
            while begin < len(plan.faults):
                fewer = replace(plan, faults=plan.faults[:begin] + plan.faults[begin + size :])
                shorter = self._attempt(fewer)
                if shorter is None:
                    begin += size
                else:
                    plan = shorter
            size //= 2
        return plan

    def _fewer_fault_sources(self, plan: FaultPlan) -> FaultPlan:
        """Remove the faults of bus, store and clocks, and all but one agent."""
        for simplify in _SIMPLIFICATIONS:
            changed = simplify(plan)
            plan = (changed != plan and self._attempt(changed)) or plan
        return plan

    def _shorter_faults(self, plan: FaultPlan) -> FaultPlan:
        """Halve the duration of each fault as often as possible."""
        index = 0
        while index < len(plan.faults):
            one = plan.faults[index]
            halved = replace(one, duration_ms=float(round(one.duration_ms / 2.0)))
            shorter = None
            if halved.duration_ms >= _SHORTEST_MS:
                shorter = self._attempt(replace(plan, faults=(*plan.faults[:index], halved, *plan.faults[index + 1 :])))
            if shorter is None:
                index += 1
            else:
                plan = shorter
        return plan


def _without_store_fault(name: str, plan: FaultPlan) -> FaultPlan:
    return replace(plan, store=replace(plan.store, **{name: 0.0}))


def _without_bus_fault(name: str, plan: FaultPlan) -> FaultPlan:
    return replace(plan, bus=replace(plan.bus, **{name: 0.0}))


_SIMPLIFICATIONS: Final[tuple[Callable[[FaultPlan], FaultPlan], ...]] = (
    lambda plan: replace(plan, bus=BusFaults()),
    lambda plan: replace(plan, store=StoreFaults()),
    *(partial(_without_store_fault, name) for name in ("refused", "unknown", "slow", "compacted")),
    *(partial(_without_bus_fault, name) for name in ("loss", "duplicate", "late")),
    lambda plan: replace(plan, clock_skew_ms_max=0.0, clock_drift_max=0.0),
    lambda plan: replace(plan, agents=min(plan.agents, 2)),
    lambda plan: replace(plan, agents=1),
)
"""Simplifications of a plan."""
