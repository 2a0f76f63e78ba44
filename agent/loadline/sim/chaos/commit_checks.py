"""Checks of a decision in the turn in which an agent starts to commit it."""

from loadline.core.fleet.pool import Pool
from loadline.core.state.agent_state import limited_supplies
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.decisions import Decision, PoolTarget
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.sim.chaos.agent_history import AgentHistory
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.world.agent import SimulatedAgent

FRESH_SLACK_MS = 3_000
"""Slack for silent workers: the planner runs every 2 s and its turn may come late."""


def quorate(pool: Pool, stale_after_ms: int, ratio: float, now: int) -> bool:
    """Return True if enough ready workers report, from a count of its own that allows for slack."""
    ready = fresh = 0
    for worker in pool.workers.values():
        if worker.availability == "ready":
            ready += 1
            fresh += now - worker.seen_at_ms <= stale_after_ms + FRESH_SLACK_MS
    return fresh >= ready * ratio


class CommitCheck:
    """Checks of one commit.

    Args:
        history: History of the committing agent.
        decision: Decision to commit.
        now: Time of the agent's clock, in ms.
        report: Receives violations.
    """

    def __init__(self, history: AgentHistory, decision: Decision, now: int, report: ReportViolation) -> None:
        self.history = history
        self.decision = decision
        self.now = now
        self.report = report
        self.model: ModelKnobs = history.models[decision.model]
        state = history.agent.controller.state
        self.state = state
        self.pools = state.fleet.models[decision.model].pools

    def run(self, others: list[SimulatedAgent]) -> None:
        """Run all checks.

        Args:
            others: Agents that must not be able to commit at this time.
        """
        self._check_leadership(others)
        self._check_timing()
        for target in self.decision.targets:
            pool = self.pools[target.pool]
            self._check_replicas(pool, target)
            if target.replicas > target.previous:
                self._check_growth(pool, target)
            elif target.replicas < target.previous and not self._has_reason(pool, ReasonCode.GPU_BUDGET_RECONCILE):
                self._check_shrink(pool, target)
        self._check_budget()
        self._check_capacity()

    def _check_leadership(self, others: list[SimulatedAgent]) -> None:
        history, now, decision = self.history, self.now, self.decision
        if history.epoch != decision.epoch or now >= history.deadline_ms:
            self.report("I3-lease", f"epoch {decision.epoch}, {now - history.deadline_ms} ms after the deadline")
        for other in others:
            if other.controller.state.leadership.may_commit(other.clock.now_ms()):
                self.report("I3-alone", f"{history.agent.name} and {other.name}")
        if history.stopping:
            self.report("I19-quiet", f"commit of sequence {decision.sequence}")
        if not (history.registry_read and history.decisions_read):
            self.report("I9-settled", f"registry {history.registry_read}, decisions {history.decisions_read}")
        if not decision.reasons:
            self.report("I18-reasons", f"sequence {decision.sequence}")

    def _check_timing(self) -> None:
        history, now, decision = self.history, self.now, self.decision
        model = decision.model
        if model in history.paused:
            self.report("P5-paused", model)
        if not history.bus_connected:
            self.report("P6-bus", model)
        if model in history.unknown:
            self.report("I17-truth", f"{history.unknown[model]} before sequence {decision.sequence}")
        if (model, decision.epoch) in history.in_flight:
            first = history.in_flight[model, decision.epoch].sequence
            self.report("I14-one", f"sequences {first}, {decision.sequence}")
        if decision.sequence <= history.tried.get((model, decision.epoch), 0):
            self.report("I17-used", f"sequence {decision.sequence} in epoch {decision.epoch}")
        if now < history.backoff_until_ms.get(model, now):
            self.report("P2-back-off", f"{history.backoff_until_ms[model] - now} ms too early")
        young_ms = now - history.acting_since_ms
        if young_ms < history.settings.fleet.stale_after_ms and any(p.decided is None for p in self.pools.values()):
            self.report("I9-young", f"{model} after {young_ms} ms")

    def _has_reason(self, pool: Pool, *codes: ReasonCode) -> bool:
        """Return True if one of the codes is a reason of the pool's count, so that weaker limits did not apply."""
        return any(f"{pool.name}:{code}" in self.decision.reasons for code in codes)

    def _check_replicas(self, pool: Pool, target: PoolTarget) -> None:
        highest = max(pool.knobs.replicas_max, min(target.previous, pool.ready + pool.starting))
        if not pool.knobs.replicas_min <= target.replicas <= highest:
            self.report("I4-replicas", f"{target.replicas} of {pool.name}")
        drains = self.state.drains.open.values()
        leaving = {d.worker for d in drains if (d.model, d.pool) == (self.model.name, pool.name)}
        if not leaving <= {victim.worker for victim in target.victims}:
            self.report("I16-named", f"{sorted(leaving)} are leaving, {[v.worker for v in target.victims]} are named")

    def _check_growth(self, pool: Pool, target: PoolTarget) -> None:
        guard = self.model.effective_guardrails
        if self._has_reason(pool, ReasonCode.REPLICAS_MIN, ReasonCode.GPU_BUDGET_RECONCILE):
            return  # bounds take precedence over the step
        scheduled = pool.schedule_minimum.replicas if self._has_reason(pool, ReasonCode.SCHEDULE_MINIMUM) else 0
        minimum = max(scheduled, int(self._has_reason(pool, ReasonCode.FIRST_WORKER)))
        if target.replicas > max(target.previous + guard.step_up_max, minimum):
            self.report("I5-step", f"{pool.name} from {target.previous} to {target.replicas}")
        if target.replicas > minimum:
            self._check_cooldown(pool, guard.cooldown_up_ms)

    def _check_cooldown(self, pool: Pool, cooldown_ms: int) -> None:
        changed_ms = max(pool.scaled_up_at_ms, pool.scaled_down_at_ms)
        if changed_ms >= 0 and self.now - changed_ms < cooldown_ms:
            self.report("P3-cooldown", f"{pool.name} again after {self.now - changed_ms} ms")

    def _check_shrink(self, pool: Pool, target: PoolTarget) -> None:
        victims = {victim.worker for victim in target.victims}
        staying = [name for name, one in pool.workers.items() if one.availability != "out" and name not in victims]
        if len(staying) > target.replicas:
            self.report("I16-victims", f"{pool.name} shrinks to {target.replicas}, {len(staying)} are no victims")
        history, now, fleet = self.history, self.now, self.history.settings.fleet
        guard = self.model.effective_guardrails
        key = self.model.name, pool.name
        change = f"{pool.name} from {target.previous} to {target.replicas}"
        if not quorate(pool, fleet.stale_after_ms, fleet.quorum_ratio, now):
            self.report("I6-data", f"{change} with {pool.fresh} of {pool.ready} fresh")
        idle = not target.replicas and self._has_reason(pool, ReasonCode.IDLE)
        if not idle:  # scale to zero takes precedence over steps, stabilisation and cooldown, not over missing data
            if target.replicas < min(target.previous, pool.scaling_base(now)) - guard.step_down_max:
                self.report("I5-step", change)
            shortage = ReasonCode.CAPACITY_LIMITED, ReasonCode.QUOTA_LIMITED, ReasonCode.UNNEEDED_GIVES_WAY
            yields = self._has_reason(pool, ReasonCode.GIVES_WAY, *shortage)
            if target.replicas < min(target.previous, history.highest_proposal(key)) and not yields:
                self.report("I8-window", f"{change}, the highest proposal is {history.highest_proposal(key)}")
        warm_ms = now - max(history.acting_since_ms, history.quorate_since_ms.get(key, now))
        if warm_ms < guard.warm_up_ms:
            self.report("I9-warm-up", f"{change} after {warm_ms} ms of data")
        if not idle:
            self._check_cooldown(pool, guard.cooldown_down_ms)

    def _check_budget(self) -> None:
        gpus_max, gpus_min = self.model.gpu_budget_max, self.model.gpu_budget_min
        targets = [(self.pools[target.pool], target) for target in self.decision.targets]
        total = sum(target.replicas * pool.knobs.gpus_per_worker for pool, target in targets)
        occupied = any(
            self._has_reason(pool, ReasonCode.GPUS_OCCUPIED) for pool, _ in targets
        )  # a minimum cannot place two workers on one GPU
        if (total < gpus_min and not occupied) or (gpus_max is not None and total > gpus_max):
            self.report("I4-budget", f"{total} GPUs")
        grows = any(target.replicas > max(target.previous, pool.knobs.replicas_min) for pool, target in targets)
        if gpus_max is None or not grows:
            return
        leaving = sum(
            (pool.draining_workers() + max(0, target.previous - target.replicas)) * pool.knobs.gpus_per_worker
            for pool, target in targets
        )
        if total + leaving > gpus_max:
            self.report("I4-occupied", f"{total} GPUs, and {leaving} occupied by leaving workers")

    def _check_capacity(self) -> None:
        """Check the supplies of which this model takes more against the use by all models after this commit."""
        settings, fleet = self.history.settings, self.state.fleet
        supplies = limited_supplies(settings, fleet)
        targets = {target.pool: target for target in self.decision.targets}
        grows = {
            supply
            for pool, takes in supplies.takes.get(self.model.name, {}).items()
            if targets[pool].replicas > max(targets[pool].previous, self.pools[pool].knobs.replicas_min)
            for supply in takes
        }
        pending = self.state.ledger.pending()
        for supply in sorted(grows):
            taken = 0
            for name, model in fleet.models.items():
                chosen = pending.get(name, {})
                occupied = {
                    pool.name: max(pool.occupied_workers(self.now), chosen.get(pool.name, 0) + pool.draining_workers())
                    for pool in model.pools.values()
                }
                taken += supplies.taken(name, occupied).get(supply, 0)
            if taken > supplies.limits[supply]:
                self.report("I4-capacity", f"{taken} of {supplies.limits[supply]} GPUs of {supply}")
