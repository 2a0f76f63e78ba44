"""Cuts a plan that breaks an invariant down to a short one that breaks the same."""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from loadline.sim.chaos.invariants import Violation
from loadline.sim.chaos.plan import HOUR_MS, FaultPlan
from loadline.sim.world.bus import BusFaults
from loadline.sim.world.store import StoreFaults

Try = Callable[[FaultPlan], Violation | None]
"""Plays a plan; gives what it broke."""

TRIES_MAX: Final = 300
_SLACK_MS: Final = 2_000.0
_SHORTEST_MS: Final = 250.0


class Shrinker:
    """Shrinks one plan.

    Args:
        play: Plays a plan.
        broke: The invariant that has to break.
        tries_max: Most plays.
    """

    def __init__(self, play: Try, broke: str, tries_max: int = TRIES_MAX) -> None:
        self.tries = 0
        self._run_plan = play
        self._violated = broke
        self._tries_max = tries_max

    def shrink(self, plan: FaultPlan) -> FaultPlan:
        """The shortest plan that was found; the one given, where it breaks nothing of that name."""
        best = self._attempt(plan)
        if best is None:
            return plan
        for step in (self._fewer_faults, self._fewer_fault_sources, self._shorter_faults, self._fewer_faults):
            best = step(best)
        return best

    def _attempt(self, plan: FaultPlan) -> FaultPlan | None:
        """The plan, ended where it breaks; None where it does not, or when it was tried often enough."""
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
        """Leave out halves, then quarters, down to single faults."""
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
        """Let bus, store and clocks be good, and the other agents be absent."""
        for simplify in _SIMPLER:
            changed = simplify(plan)
            plan = (changed != plan and self._attempt(changed)) or plan
        return plan

    def _shorter_faults(self, plan: FaultPlan) -> FaultPlan:
        """Halve how long each fault lasts, as often as possible."""
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


_SIMPLER: Final[tuple[Callable[[FaultPlan], FaultPlan], ...]] = (
    lambda plan: replace(plan, bus=BusFaults()),
    lambda plan: replace(plan, store=StoreFaults()),
    *(partial(_without_store_fault, name) for name in ("refused", "unknown", "slow", "compacted")),
    *(partial(_without_bus_fault, name) for name in ("loss", "duplicate", "late")),
    lambda plan: replace(plan, clock_skew_ms_max=0.0, clock_drift_max=0.0),
    lambda plan: replace(plan, agents=min(plan.agents, 2)),
    lambda plan: replace(plan, agents=1),
)
"""Each makes a plan a little simpler."""
