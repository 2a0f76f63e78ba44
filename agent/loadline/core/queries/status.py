"""Read-only queries: status, explanations and decisions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.migration.outcomes import MigrationCode, PolicyReport
from loadline.core.migration.status import drained_workers, migration_status, policy_reports
from loadline.core.planning.allocation.gpu_ledger import gpu_ledger_of
from loadline.core.planning.conditions import empty_pools, lacks_traffic
from loadline.core.planning.encode_pools import as_seen_by
from loadline.core.planning.planners import BUILT_IN, PLANNERS, Planner
from loadline.core.planning.plugin_values import plain_copy
from loadline.core.planning.sizing.profile.counts import profile_problem
from loadline.core.state.agent_state import AgentState, limited_supplies
from loadline.core.state.alarms import newest_alarms
from loadline.core.state.model_state import ModelState
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.reasons import Explanation, Reason
from loadline.core.vocabulary.status import (
    AgentStatus,
    DecisionSummary,
    Estimates,
    MigrationStatus,
    ModelStatus,
    SharingStatus,
)

NO_PLANNERS: Final[Mapping[str, Planner]] = {}


def status(  # noqa: PLR0917 - one argument for each input
    settings: Settings,
    state: AgentState,
    version: str,
    started_at_ms: int,
    now: int,
    planners: Mapping[str, Planner] = NO_PLANNERS,
) -> AgentStatus:
    """Return the status of the agent and of all models at ``now`` (ms), with the estimates of these planners."""
    models = [model_status(state, model, now, planners.get(model.name)) for model in settings.models]
    return agent_status(settings, state, models, version=version, started_at_ms=started_at_ms, now=now)


def agent_status(
    settings: Settings, state: AgentState, models: Sequence[ModelStatus], *, version: str, started_at_ms: int, now: int
) -> AgentStatus:
    """Return the status of the agent at ``now`` (ms), with those of its models."""
    leadership = state.leadership
    ledger = gpu_ledger_of(state.fleet, state.ledger.pending(), limited_supplies(settings, state.fleet), now)
    return AgentStatus(
        agent=settings.agent,
        version=version,
        at_ms=now,
        uptime_ms=now - started_at_ms,
        leading=state.leading,
        epoch=leadership.epoch if state.leading else 0,
        leader=settings.agent if state.leading else leadership.leader,
        bus_connected=state.bus_connected,
        store_connected=state.store_connected,
        models=tuple(models),
        rejected=dict(sorted(state.rejected.items())),
        counters=dict(sorted(state.counters.items())),
        gpus=state.gpus.status(state.fleet, ledger, now),
        config_digest=settings.digest,
        config_problem=state.config_problem,
        restart_for=tuple(state.restart_for),
        supplies=state.allocation.status(state.fleet, ledger, now),
        alarms=state.alarms.recent(now),
    )


def merge_statuses(shards: Sequence[AgentStatus], populated: int, live_agents: Sequence[str]) -> AgentStatus:
    """Return the status of an agent that shares the models, from those of its shards; ``populated`` have models."""
    first, led = shards[0], tuple(number for number, one in enumerate(shards) if one.leading)
    leading = [shards[number] for number in led]
    return replace(
        first,
        leading=bool(led),
        epoch=max((one.epoch for one in leading), default=0),
        leader=first.agent if led else "",
        models=tuple(sorted((model for one in leading for model in one.models), key=lambda model: model.model)),
        rejected=sum_counts(one.rejected for one in shards),
        counters=sum_counts(one.counters for one in shards),
        gpus=next((one.gpus for one in leading if one.gpus is not None and one.models), None),
        supplies=tuple(sorted((supply for one in leading for supply in one.supplies), key=lambda one: one.supply)),
        sharing=SharingStatus(populated, led, tuple(live_agents)),
        alarms=newest_alarms(alarm for one in shards for alarm in one.alarms),
    )


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add counts up by name."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


def model_status(state: AgentState, knobs: ModelKnobs, now: int, planner: Planner | None = None) -> ModelStatus:
    """Return the status of a model at ``now`` (ms), with the estimates of its planner."""
    model = state.fleet.models[knobs.name]
    reasons = _hold_reasons(model.hold)
    return ModelStatus(
        model=knobs.name,
        planner=knobs.planner,
        paused=knobs.name in state.paused,
        no_operation=knobs.no_operation,
        pools=tuple(
            replace(pool.status(now), recommended=model.recommended.get(name)) for name, pool in model.pools.items()
        ),
        traffic=model.traffic.status(now),
        decision=newest_decision(state, knobs.name),
        hold=tuple(reason.sentence() for reason in reasons),
        hold_reasons=tuple(dict.fromkeys(f"{reason.pool}:{reason.code}" for reason in reasons)),
        missing=tuple(missing(model, knobs, now)),
        namespace=knobs.namespace,
        priority=knobs.priority,
        service_class=knobs.service_class,
        objectives=_active_objectives(knobs),
        conditions=model.conditions,
        settled=state.settled(model, now),
        migrations=_migrations(state, model, now),
        emptied=drained_workers(model.migration),
        estimates=Estimates() if planner is None else _estimates(planner, model),
        epoch=state.leadership.epoch if state.leading else 0,
    )


def summarise(decision: Decision, state: str, detail: str = "") -> DecisionSummary:
    """Summarise a decision, its state and what its scaler says about it."""
    return DecisionSummary(
        decision_id=decision.decision_id,
        model=decision.model,
        epoch=decision.epoch,
        sequence=decision.sequence,
        issued_at_ms=decision.issued_at_ms,
        state=state,
        targets={target.pool: target.replicas for target in decision.targets},
        reasons=decision.reasons,
        detail=detail,
    )


def newest_decision(state: AgentState, model: str) -> DecisionSummary | None:
    """Return the decision in force of a model; None if there is none."""
    entry = state.ledger.entries.get(model)
    return None if entry is None or entry.decision is None else summarise(entry.decision, entry.state, entry.detail)


def _hold_reasons(hold: Explanation | None) -> list[Reason]:
    """Return the limits of a hold, and the reasons of its recommendations."""
    if hold is None:
        return []
    return [*hold.limits, *(reason for one in hold.recommendations for reason in one.reasons)]


def _estimates(planner: Planner, model: Model) -> Estimates:
    """Return the estimates of a planner; none if it fails, since the status of all models must be readable."""
    try:
        found = planner.estimates(as_seen_by(planner, model))
        return found if type(planner) in BUILT_IN else plain_copy(found, Estimates)
    except Exception:  # noqa: BLE001 - planners of other packages may raise anything
        return Estimates()


def _migrations(state: AgentState, model: ModelState, now: int) -> MigrationStatus | None:
    """Return the migrations of a model; None if migration is disabled."""
    if model.migration.knobs is None:
        return None
    return migration_status(model.migration, state.migration.in_flight.of_model(model.name), now)


def _active_objectives(knobs: ModelKnobs) -> dict[str, float]:
    """Return the objectives that are set and that the planner of a model sizes for."""
    needs, objectives = PLANNERS[knobs.planner].needs, knobs.effective_objectives
    sized_for = needs.objectives if knobs.objectives is not None or needs.default_objectives else ()
    values = {key: getattr(objectives, key) for key in objectives.__struct_fields__ if key in sized_for}
    return {key: value for key, value in values.items() if value is not None and (value or key == "attainment")}


def missing(model: Model, knobs: ModelKnobs, now: int) -> list[str]:
    """Return the missing inputs of a model (workers, traffic, profiles), one sentence each."""
    scales_to_zero = bool(knobs.scale_to_zero_after_ms)
    empty = empty_pools(model, now, scales_to_zero=scales_to_zero)
    found = [f"{model.name}: no worker of pool {pool.name} is ready" for pool in empty]
    needs = PLANNERS[knobs.planner].needs
    if lacks_traffic(model, "required" if scales_to_zero else needs.traffic, now):
        found.append(f"{model.name}: no frontend reports traffic")
    optional = needs.profiles == "optional"  # an invalid profile is reported, an absent one is not
    profiled = [pool for pool in model.pools.values() if pool.knobs.role != "encode"]
    checked = [pool for pool in profiled if pool.engine.problem or not optional]
    problems = [profile_problem(pool) for pool in checked if needs.profiles != "no"]
    return [*found, *(f"{model.name}: {problem.sentence()}" for problem in problems if problem is not None)]


def lacks_migration_slots(state: AgentState, knobs: ModelKnobs) -> list[str]:
    """Return a sentence if migration is enabled and no worker of a model reports migration slots."""
    workers = [worker for pool in state.fleet.models[knobs.name].pools.values() for worker in pool.workers.values()]
    samples = [sample for worker in workers for sample in worker.latest if sample is not None]
    supported = any(one.migration_slots_in is not None or one.migration_slots_out is not None for one in samples)
    if supported or not samples or not knobs.migration.enabled:
        return []
    return [f"{knobs.name}: no worker publishes migration_slots_in or migration_slots_out, so no request migrates"]


def explain(state: AgentState, decision_id: str, model: str, *, earlier: bool = False) -> list[Explanation]:
    """Return the explanation of a decision; without an id, those of the newest decision and hold of each model.

    An empty ``model`` selects all models, and ``earlier`` also the decisions before the newest one.
    """
    if decision_id:
        return list(state.explanations.of_decision(decision_id))
    found: list[Explanation] = []
    for name in sorted(state.fleet.models):
        if model in {"", name}:
            decided = state.explanations.of_model(name)
            found += decided if earlier else islice(decided, 1)
            hold = state.fleet.models[name].hold
            if hold is not None:
                found.append(hold)
    return sorted(found, key=lambda e: -e.at_ms)


def explain_migrations(state: AgentState, decision_id: str, model: str) -> list[PolicyReport]:
    """Return the last reports of the migration policies of a model, or of all if ``model`` is empty.

    The list is empty if ``decision_id`` is given, since migrations belong to no decision.
    """
    if decision_id:
        return []
    models = [one for name, one in sorted(state.fleet.models.items()) if model in {"", name}]
    found = [report for one in models for report in policy_reports(one.migration)]
    return [replace(one, code=MigrationCode.PAUSED, numbers={}) if one.model in state.paused else one for one in found]


def decisions(states: Iterable[AgentState]) -> list[DecisionSummary]:
    """Return the newest decision of each model, newest first."""
    summaries = (newest_decision(state, model) for state in states for model in state.ledger.entries)
    found = [summary for summary in summaries if summary is not None]
    return sorted(found, key=lambda d: (-d.issued_at_ms, d.model))
