"""From the picture of one model to a decision, or to a hold: plan, guard, look for obstacles, propose, explain."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.decisions.drains import choose_victims
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.planning.allocation.fleet_allocation import terms_of
from loadline.core.planning.allocation.gpu_ledger import GpuLedger, gpu_ledger_of
from loadline.core.planning.allocation.model_demand import ModelDemand, demand_of, standing
from loadline.core.planning.conditions import conditions
from loadline.core.planning.guardrails.constraints import NO_BOUNDS, UNLIMITED_HEADROOM, Bound, Constraints
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.planning.planners import BY_TRAFFIC, Planner
from loadline.core.planning.scale_to_zero import IdleTracker
from loadline.core.planning.schedules import Schedules
from loadline.core.rounds.reconciliation import renew
from loadline.core.state.agent_state import AgentState, limited
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.decisions import PoolTarget, Victim
from loadline.core.vocabulary.effects import Effect, FitForecast, RaiseAlarm
from loadline.core.vocabulary.reasons import Explanation, Reason, ReasonCode, Recommendation

EXPLANATIONS_KEPT = 256
_RETRY_MS: Final = 1_000
"""After a planner failed it is asked again at this pace, or when its model's picture changes."""
_FAULT_MAX: Final = 200
"""Characters of a fault that are told."""


class Evaluation(Struct, frozen=True):
    """What the planner of a model says, what that is kept to, and what it wants to have forecast."""

    model: Model
    opinion: Recommendation
    bounds: Mapping[str, Bound]
    asks: Sequence[Effect]
    failed: bool


class ScalingPipeline:
    """Plans the models of a state. Everything that it remembers is in the state and in the planners."""

    def __init__(self, settings: Settings, state: AgentState, planners: dict[str, Planner]) -> None:
        self.state = state
        self.planners = planners
        self._scope = settings.scope
        self._knobs: dict[str, ModelKnobs] = {model.name: model for model in settings.models}
        self._allocation = settings.allocation
        self._supplies = limited(settings, state.fleet)
        state.allocation.obey(terms_of(state.fleet, self._supplies, self._allocation))
        self._books_of_turn: GpuLedger | None = None
        self._schedules = {model.name: Schedules(model.pools, settings.zones) for model in settings.models}

    def _books(self, now: int) -> GpuLedger | None:
        """What all models have, where a budget or a limited supply binds them."""
        return gpu_ledger_of(self.state.fleet, self.state.ledger.pending(), self._supplies, now)

    def plan(self, names: Sequence[str], now: int) -> list[Effect]:
        """Look at models at ``now`` (ms), with the forecasts that have come.

        Gives commits of new decisions, if there are any, and what is wanted of those who answer.
        """
        books = self._books_of_turn = self._books(now) if names or self.state.allocation.better else None
        looks = [self._look(name, now) for name in names]
        try:
            effects = self._allocate(looks, books, now)
        except Exception as fault:  # noqa: BLE001 - as of a planner
            looks, effects = [self._failed(look, fault, now) for look in looks], []
        for look in looks:
            effects += [*look.asks, *self._follow_or_hold(look, books, now)]
            self._judge(look.model, look.opinion, now)
        return effects

    def _look(self, name: str, now: int) -> Evaluation:
        state = self.state
        model = state.fleet.models[name]
        if state.due[name] <= now:
            model.expire_silent(now, state.fleet.knobs)
        model.refresh_totals(now, state.fleet.knobs)
        wake_ms = self._schedules[name].look(model, now)
        opinion, asks = self._ask(model, now)
        if wake_ms is not None:
            state.due[name] = min(state.due[name], wake_ms)
        failed = any(reason.code is ReasonCode.PLANNER_FAILED for reason in opinion.reasons)
        return Evaluation(model, opinion, self._bounds(model, opinion.targets, now), asks, failed)

    def _allocate(self, looks: Sequence[Evaluation], books: GpuLedger | None, now: int) -> list[Effect]:
        """Let models have their share of what is limited; those whose share has changed are planned next."""
        state, allocation, takes = self.state, self.state.allocation, self._supplies.takes
        if books is None or not takes or not state.leading or not (looks or allocation.better):
            return []
        looked = {look.model.name: look for look in looks}
        for name in takes:
            if name in looked or name not in allocation.wishes:
                allocation.hear(name, self._wish(state.fleet.models[name], looked.get(name), books, now))
        changed, effect = allocation.allocate(state.fleet, self._supplies, self._allocation, now)
        for name in changed:
            if name not in looked:
                state.due[name] = now
        for name in allocation.heard:
            state.due[name] = min(state.due[name], allocation.again_at_ms)
        return [] if effect is None else [effect]

    def _failed(self, look: Evaluation, fault: Exception, now: int) -> Evaluation:
        """A look that says nothing, if its model shares what is limited: nobody knows what is left for it."""
        name = look.model.name
        if name not in self._supplies.takes:
            return look
        opinion, alarms = self._fail(name, fault, now)
        return replace(look, opinion=opinion, asks=[*look.asks, *alarms], failed=True)

    def _wish(self, model: Model, look: Evaluation | None, books: GpuLedger, now: int) -> ModelDemand:
        """What a model would have; one for which nothing can be decided stays as it is."""
        state, name = self.state, model.name
        pending = books.pending.get(name, {})
        stays = name in state.paused or self._knobs[name].no_operation
        if look is None or look.failed or stays or self._unsettled(model, now) is not None:
            return standing(model, pending, now)
        limits, stale_after_ms = state.guards[name].hard, state.fleet.knobs.stale_after_ms
        granted = state.allocation.granted.get(name, {})
        return demand_of(model, look.opinion, look.bounds, limits, pending, granted, stale_after_ms, now)

    def _bounds(self, model: Model, proposed: dict[str, int], now: int) -> Mapping[str, Bound]:
        """What the pools of a model are kept to at the moment, whatever its planner says."""
        state, name = self.state, model.name
        if all(pool.knobs.replicas_min for pool in model.pools.values()):
            return NO_BOUNDS
        sleep, after_ms = state.sleeps.setdefault(name, IdleTracker()), self._knobs[name].scale_to_zero_after_ms
        if any(pool.schedule_minimum.replicas for pool in model.pools.values()):
            after_ms = 0  # nobody sleeps in the window of a schedule
        sleep.observe(model, now)
        idle_at_ms = sleep.idle_at_ms(after_ms)
        if idle_at_ms is not None and idle_at_ms > now:
            state.due[name] = min(state.due[name], idle_at_ms)
        return sleep.bounds(model, proposed, after_ms, now)

    def _judge(self, model: Model, opinion: Recommendation, now: int) -> None:
        """Note the conditions of a model that was just planned."""
        state, name = self.state, model.name
        said = (*state.explanations[-1:], state.holds.get(name))  # what was just decided is the newest
        rails = next((one.limits for one in said if one is not None and (one.model, one.at_ms) == (name, now)), ())
        if self._knobs[name].no_operation:
            rails = (Reason(ReasonCode.ADVISE_ONLY), *rails)
        obstacle = self._obstacle(name, now)  # nothing may be wanted now: it is in the way all the same
        state.conditions[name] = conditions(
            model,
            opinion,
            rails if obstacle is None else [obstacle, *rails],
            state.conditions.get(name, ()),
            now,
            fleet=state.fleet.knobs,
            by_traffic=self._knobs[name].planner in BY_TRAFFIC,
        )

    def _ask(self, model: Model, now: int) -> tuple[Recommendation, list[Effect]]:
        """What the planner of a model says and wants. One that fails holds its own model, and no other."""
        state, name, planner = self.state, model.name, self.planners[model.name]
        try:
            for answer in state.answers.pop(name, ()):
                planner.take(answer)
            opinion, wake_ms, asked = planner.plan(model, now), planner.next_wake(), planner.asked()
        except Exception as fault:  # noqa: BLE001 - whatever it is, all models would stop for it, and again after a restart
            return self._fail(name, fault, now)
        state.due[name] = wake_ms
        if asked is None:
            return opinion, []
        state.requests[name] = asked.request
        return opinion, [FitForecast(name, asked.request, asked.questions)]

    def _fail(self, name: str, fault: Exception, now: int) -> tuple[Recommendation, list[Effect]]:
        """That there is a fault, as an opinion; and an alarm, if it is a new one."""
        state, text = self.state, f"{type(fault).__name__}: {fault}"[:_FAULT_MAX]
        state.due[name] = now + _RETRY_MS
        state.count("planner_failures")
        alarms: list[Effect] = [] if name in state.failing else [RaiseAlarm("planner_failed", name, text)]
        state.failing[name] = None
        return Recommendation(
            self.planners[name].name, {}, (Reason(ReasonCode.PLANNER_FAILED, detail=text),), {}
        ), alarms

    def wake(self, now: int) -> None:
        """Have the models planned next that waited for GPUs that are there now, and those that are to give some."""
        state = self.state
        waits = state.gpus.claims or state.allocation.waiting
        books = (self._books_of_turn or self._books(now)) if waits else None
        if books is not None:
            for name in (*state.gpus.ready(state.fleet, books, now), *state.allocation.ready(books)):
                state.due[name] = now

    def _follow_or_hold(self, look: Evaluation, books: GpuLedger | None, now: int) -> list[Effect]:
        """What becomes of an opinion. A fault on the way holds its own model, and no other."""
        try:
            effects = self._follow(look, books, now)
        except Exception as fault:  # noqa: BLE001 - as of a planner
            opinion, alarms = self._fail(look.model.name, fault, now)
            self._hold(look.model, opinion, Proposal({}), None, now)
            return alarms
        if not look.failed:
            self.state.failing.pop(look.model.name, None)
        return effects

    def _follow(self, look: Evaluation, books: GpuLedger | None, now: int) -> list[Effect]:
        state, model, opinion, name = self.state, look.model, look.opinion, look.model.name
        unsettled = self._unsettled(model, now)
        if unsettled is not None:
            state.gpus.forget(name)
            state.allocation.forget(name)
            self._hold(model, opinion, Proposal({}), unsettled, now)
            return []
        alarms = renew(state, model, now)
        allowance = state.gpus.allowance(state.fleet, name, books, now)
        supply = UNLIMITED_HEADROOM if books is None else state.allocation.room(state.fleet, name, books, now)
        constraints = Constraints(state.acting_since_ms, look.bounds, allowance, supply)
        draft = state.guards[name].apply(model, opinion.targets, constraints, now)
        obstacle = self._obstacle(name, now)
        if obstacle is None and not self._knobs[name].no_operation:
            state.gpus.note(state.fleet, model, draft, allowance, now)
            state.allocation.note(name, draft.waits, supply, now)
        elif obstacle is None or obstacle.code is not ReasonCode.DECISION_IN_FLIGHT:
            state.gpus.forget(name)
            state.allocation.forget(name)
        unchanged = all(draft.targets[pool] == one.effective_target(now) for pool, one in model.pools.items())
        if unchanged and name not in state.renewals:
            self._hold(model, opinion, draft, None, now)
            return alarms
        if obstacle is not None:
            self._hold(model, opinion, draft, obstacle, now)
            return alarms
        if self._knobs[name].no_operation:
            self._advise(model, opinion, draft, now)
            return alarms
        effect = self._decide(model, opinion, draft, now)
        if books is not None:
            books.pending[name] = draft.targets
            books.enter(model, now)
        return [*alarms, effect]

    def _unsettled(self, model: Model, now: int) -> Reason | None:
        """Why nothing may be decided yet; None once this agent leads and knows everything."""
        state = self.state
        if not state.leadership.may_commit(now):
            return Reason(ReasonCode.NOT_LEADER)
        if not (state.registry_read and state.decisions_read):
            return Reason(ReasonCode.NOT_SETTLED)
        if state.acting_since_ms < 0:
            state.acting_since_ms = now
        return None if state.settled(model, now) else Reason(ReasonCode.NOT_SETTLED)

    def _obstacle(self, name: str, now: int) -> Reason | None:
        """Why no decision may be begun for this model now, although one is wanted."""
        state, entry = self.state, self.state.ledger.entry(name)
        if state.stopping:
            return Reason(ReasonCode.STOPPING)
        if name in state.paused:
            return Reason(ReasonCode.PAUSED)
        if not state.bus_connected:
            return Reason(ReasonCode.BUS_DOWN)
        if entry.pending is not None:
            return Reason(ReasonCode.DECISION_IN_FLIGHT)
        if now < entry.not_before_ms:
            return Reason.of(ReasonCode.RETRY_BACKOFF, left_ms=entry.not_before_ms - now)
        return None

    def _hold(self, model: Model, opinion: Recommendation, draft: Proposal, obstacle: Reason | None, now: int) -> None:
        rails = draft.limits if obstacle is None else [obstacle, *draft.limits]
        self.state.holds[model.name] = self._explanation("held", "", model, opinion, draft.targets, rails, now)

    def _advise(self, model: Model, opinion: Recommendation, draft: Proposal, now: int) -> None:
        self.state.renewals.pop(model.name, None)
        rails = [Reason(ReasonCode.ADVISE_ONLY), *draft.limits]
        advice = self._explanation("advised", "", model, opinion, draft.targets, rails, now)
        last = self.state.holds.get(model.name)
        if last is None or last.outcome != "advised" or last.targets != advice.targets:
            self.state.count("decisions_advised")
            self._keep(advice)
        self.state.holds[model.name] = advice

    def _decide(self, model: Model, opinion: Recommendation, draft: Proposal, now: int) -> Effect:
        state = self.state
        targets = tuple(
            PoolTarget(
                pool=pool.name,
                role=pool.knobs.role,
                replicas=draft.targets[pool.name],
                previous=pool.effective_target(now),
                victims=self._victims(model.name, pool, draft.targets[pool.name]),
            )
            for pool in model.pools.values()
        )
        said = [Reason(ReasonCode.ASKED_AGAIN)] if model.name in state.renewals else []
        state.renewals.pop(model.name, None)
        said += [*(r for r in opinion.reasons if not r.pool or r.pool in opinion.targets), *draft.limits]
        reasons = tuple(dict.fromkeys(f"{r.pool}:{r.code}" if r.pool else str(r.code) for r in said))[:64]
        decision = state.ledger.propose(
            model.name, targets, reasons, state.leadership.epoch, state.drains.knobs.ttl_ms, now
        )
        self._keep(self._explanation("decided", decision.decision_id, model, opinion, draft.targets, draft.limits, now))
        return state.ledger.commit_effect(model.name, self._scope)

    def _victims(self, model: str, pool: Pool, replicas: int) -> tuple[Victim, ...]:
        leaving = self.state.drains.of_pool(model, pool.name)
        surplus = max(0, pool.ready + pool.starting - replicas)
        moves = self._knobs[model].migration
        gives = partial(self._gives, model) if moves.enabled and moves.migrate_drains else None
        return (*leaving, *choose_victims(pool, surplus, gives))

    def _gives(self, model: str, worker: WorkerState) -> bool:
        """Whether a worker has ever had a slot for requests that it gives away."""
        peers, record = self.state.migration.peers.get(model), worker.record
        peer = None if peers is None else peers.find(record.pool, record.worker)
        return peer is not None and peer.incarnation == record.incarnation and peer.slots_out_max > 0

    def _explanation(  # noqa: PLR0917 - one argument for each part of an explanation
        self,
        outcome: str,
        decision_id: str,
        model: Model,
        opinion: Recommendation,
        targets: dict[str, int],
        rails: list[Reason],
        now: int,
    ) -> Explanation:
        current = {name: pool.effective_target(now) for name, pool in model.pools.items()}
        return Explanation(
            model=model.name,
            at_ms=now,
            outcome=outcome,
            decision_id=decision_id,
            current=current,
            recommendations=(opinion,),
            limits=tuple(rails),
            targets=targets or current,
        )

    def _keep(self, explanation: Explanation) -> None:
        self.state.explanations.append(explanation)
        del self.state.explanations[:-EXPLANATIONS_KEPT]
