"""Pools under guardrails."""

import msgspec

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.knobs import GuardrailKnobs, HardLimits
from loadline.core.planning.guardrails.proposal import Proposal
from tests.support.fleet_harness import START, FleetHarness

A = PoolKnobs("a", "decode")
B = PoolKnobs("b", "decode", gpus_per_worker=2)
FREE = GuardrailKnobs(step_up_max=100, step_down_max=100, stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0)
MINUTE_MS = 60_000


class GuardrailHarness(FleetHarness):
    """Pools at a current count under guardrails without limits, except those that a test sets."""

    def __init__(self, *pools: PoolKnobs, current: int = 4, quorate: bool = True, **knobs: int) -> None:
        super().__init__(pools, 0)
        self.guard = Guardrails(msgspec.structs.replace(FREE, **knobs), HardLimits(0.8, 0, None))
        self.acting_since_ms = START - 60 * MINUTE_MS
        for pool in pools:
            self.set_current(pool.name, current, quorate=quorate)

    def set_current(self, name: str, count: int, *, quorate: bool = True) -> None:
        pool = self.pool(name)
        pool.decided = count
        self.add_workers(name, count)
        pool.ready_changed_at_ms = -1
        self.report(name, silent=0 if quorate else count)

    def budget(self, gpus_max: int | None, gpus_min: int = 0) -> "GuardrailHarness":
        self.guard.hard = HardLimits(0.8, gpus_min, gpus_max)
        return self

    def drain(self, name: str, count: int) -> None:
        """Add ``count`` workers that are draining."""
        self.add_workers(name, count)
        for worker in list(self.pool(name).workers)[-count:]:
            self.fleet.start_drain("m", name, worker, self.now)

    def apply(self, **proposed: int) -> Proposal:
        return self.guard.apply(self.refresh(), proposed, Constraints(self.acting_since_ms), self.now)

    def apply_with_unneeded(self, unneeded: dict[str, int], **proposed: int) -> Proposal:
        constraints = Constraints(self.acting_since_ms)
        return self.guard.apply(self.refresh(), proposed, constraints, self.now, unneeded)

    def outcome(self, **proposed: int) -> tuple[dict[str, int], list[str]]:
        draft = self.apply(**proposed)
        return draft.targets, [f"{r.pool}:{r.code}" for r in draft.limits]
