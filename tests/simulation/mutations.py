"""Mutations that disable one safeguard each, to prove that the invariants detect its absence.

With a mutation some run of the CI set violates the safeguard's invariant, or a longer one where ``hours`` says so. The
listed seed runs first; best is one that violates it early. A change of what agents do changes the runs of all seeds, so
others are tried as well.
``python -m tests.simulation.mutations`` finds new seeds.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from loadline.client.fence import CountsInForce, DecisionFence, Freshness
from loadline.core import controller
from loadline.core.decisions import ledger as ledgers
from loadline.core.decisions import victims
from loadline.core.decisions.drains import Drains
from loadline.core.decisions.leadership import Leadership
from loadline.core.decisions.ledger import Ledger, LedgerEntry
from loadline.core.decisions.victims import Removal
from loadline.core.fleet.fleet import Fleet
from loadline.core.fleet.pool import Pool
from loadline.core.handlers import drains as drain_handlers
from loadline.core.handlers import leadership as leadership_handlers
from loadline.core.handlers.turn import Turn
from loadline.core.planning.guardrails import gpu_guardrails, removal_guardrails
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.rounds import reconciliation
from loadline.core.rounds.scaling import gate, propose
from loadline.core.rounds.scaling.context import ScalingContext
from loadline.core.state import agent_state
from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.effects import AnnounceDecision
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.ports import Compare
from loadline.runtime import effects as effect_runner
from loadline.sim.chaos.runner import ChaosResult, run_plan
from tests.simulation.mutation_runs import Apply, Mutation, combined, constant, find_seeds, wrapped

NEVER = 2**53

# -- kinds of mutations ------------------------------------------------------------------------------------------------


def handled(kind: type[ev.AnyEvent], new: Callable[..., Any]) -> Apply:
    """Replace the handler of a kind of event by ``new(old, turn, event)``."""
    old = controller.HANDLERS[kind]
    return lambda: patch.dict(controller.HANDLERS, {kind: lambda turn, event: new(old, turn, event)})


def without_limit(*codes: ReasonCode, growing: bool | None = None) -> Apply:
    """Disable guardrails by their reason codes; only for growth, or only for shrinks."""

    def ignore(  # noqa: PLR0917 - as it is
        old: Any, draft: Proposal, code: ReasonCode, pool: str, allowed: int, detail: str = "", **numbers: float
    ) -> None:
        held_growth = allowed < draft.targets[pool]
        if code not in codes or (growing is not None and held_growth != growing):
            old(draft, code, pool, allowed, detail, **numbers)

    return wrapped(Proposal, "limit", ignore)


def without_obstacle(code: ReasonCode) -> Apply:
    """Ignore one obstacle to decisions."""

    def ignore(old: Any, state: AgentState, model: ModelState, now: int) -> Reason | None:
        found = old(state, model, now)
        return None if found is not None and found.code == code else found

    return wrapped(gate, "obstacle", ignore)


def without_settling(*, read: bool) -> Apply:
    """Let a leader decide before it has read everything or, with ``read``, before it has observed a new fleet."""

    def ignore(old: Any, state: AgentState, model: ModelState, now: int) -> Reason | None:
        found = old(state, model, now)
        known = state.registry_read and state.decisions_read
        off = found is not None and found.code == ReasonCode.NOT_SETTLED and known == read
        return None if off else found

    return wrapped(gate, "unsettled", ignore)


def without_compare(target: str) -> Apply:
    """Let a comparison of a commit always succeed, but not that of a campaign."""
    always = Compare("nobody's", "mod", 0)

    def ignore(old: Any, key: str, what: str, number: int) -> Compare:
        campaign = "/leader/" in key and what != "lease"
        return always if what == target and not campaign else old(key, what, number)

    return wrapped(effect_runner, "Compare", ignore)


# -- replacements of production code -----------------------------------------------------------------------------------


def always_warm(old: Any, limits: Guardrails, *arguments: Any) -> Any:
    track = old(limits, *arguments)
    track.quorate_since_ms = -1
    return track


def no_ceiling(old: Any, changes: Any, band: GpuBand, _free: int | None) -> Any:
    return old(changes, GpuBand(floor=band.floor), None)


def no_floor(old: Any, changes: Any, band: GpuBand, free: int | None) -> Any:
    return old(changes, GpuBand(ceiling=band.ceiling), free)


def nobody_leaves(old: Any, changes: Any, band: GpuBand, _free: int | None) -> Any:
    return old(changes, band, None)


def forget_unknown(_old: Any, turn: Turn, event: ev.CommitUnknown) -> None:
    turn.state.ledger.drop_pending(event.decision_id, event.model, turn.now)


def forget_refused(_old: Any, turn: Turn, event: ev.CommitRefused) -> None:
    turn.state.ledger.drop_pending(event.decision_id, event.model, turn.now)


def use_again(old: Any, ledger: Ledger, decision: str, model: str, now: int) -> Any:
    dropped = old(ledger, decision, model, now)
    ledger.entry(model).sequence -= bool(dropped)
    return dropped


def start_over(old: Any, ledger: Ledger, entry: LedgerEntry, *rest: Any) -> Any:
    sequence = entry.sequence
    adopted = old(ledger, entry, *rest)
    entry.sequence = sequence
    return adopted


def no_end(old: Any, ledger: Ledger, entry: LedgerEntry, *rest: Any) -> Any:
    adopted = old(ledger, entry, *rest)
    entry.give_up_at_ms = NEVER
    return adopted


def announce_once(old: Any, ledger: Ledger, model: str, now: int) -> Any:
    effects = old(ledger, model, now)
    if any(isinstance(effect, AnnounceDecision) for effect in effects):
        ledger.entries[model].announce_at_ms = NEVER
    return effects


def believe_counts(old: Any, turn: Turn, event: ev.DecisionAnswered) -> Any:
    return old(turn, replace(event, observed={}))


def believe_numbers(old: Any, turn: Turn, event: ev.DecisionAnswered) -> Any:
    entry = turn.state.ledger.entries.get(event.model)
    decision = entry.decision if entry else None
    if decision is not None and decision.decision_id == event.decision_id:
        event = replace(event, epoch=decision.epoch, sequence=decision.sequence)
    return old(turn, event)


def no_deadline(old: Any, leadership: Leadership, requested_at_ms: int) -> None:
    old(leadership, requested_at_ms)
    leadership.deadline_ms = NEVER


def no_margin(old: Any, leadership: Leadership, requested_at_ms: int) -> None:
    old(leadership, requested_at_ms)
    leadership.deadline_ms += leadership.knobs.margin_ms


def from_the_answer(old: Any, turn: Turn, event: ev.LeaseRenewed) -> Any:
    return old(turn, replace(event, requested_at_ms=turn.now))


def not_lost(old: Any, turn: Turn, event: ev.LeaseRenewalFailed) -> Any:
    return old(turn, replace(event, lost=False))


def keep_leading(old: Any, turn: Turn, event: ev.LeaderChanged) -> Any:
    return None if turn.state.leading else old(turn, event)


def ask_again(old: Any, leadership: Leadership, now: int) -> Any:
    leadership.awaiting = False
    return old(leadership, now)


def resign_first(old: Any, turn: Turn) -> Any:
    effects = turn.state.leadership.resign(turn.now) if turn.state.stopping and turn.state.leading else []
    return [*effects, *old(turn)]


def give_up(old: Any, leadership: Leadership, *args: Any) -> Any:
    lost = old(leadership, *args)
    leadership.campaign_at_ms = NEVER
    return lost


def no_growth(old: Any, planner: ThresholdPlanner, *args: Any) -> Any:
    verdict = old(planner, *args)
    return replace(verdict, step=min(0, verdict.step))


def no_drain_deadline(old: Any, drains: Drains, *args: Any, **kwargs: Any) -> Any:
    refused = old(drains, *args, **kwargs)
    for drain in drains.open.values():
        drain.deadline_ms = NEVER
    return refused


def ask_to_drain_once(old: Any, drains: Drains, *args: Any) -> Any:
    effects = old(drains, *args)
    for drain in drains.open.values():
        drain.command_at_ms = NEVER
    return effects


def never_revoke(old: Any, drains: Drains, *args: Any) -> Any:
    knobs = drains.knobs
    drains.knobs = replace(knobs, revoke_after=NEVER)
    effects = old(drains, *args)
    drains.knobs = knobs
    return effects


def any_sample(old: Any, fleet: Fleet, event: ev.LoadReported, now: int) -> Any:
    pool = fleet.find_pool(event.model, event.pool)
    worker = pool.workers.get(event.worker) if isinstance(pool, Pool) else None
    if worker is not None:
        worker.latest[:] = [None] * len(worker.latest)
    return old(fleet, event, now)


def never_stale(old: Any, fence: DecisionFence, decision: Any, now_s: float) -> Any:
    verdict = old(fence, decision, now_s)
    return Freshness.NEW if verdict is Freshness.STALE else verdict


def victims_forgotten(
    old: Any, context: ScalingContext, model: ModelState, recommendation: Any, proposal: Proposal
) -> dict[str, Removal]:
    leaving = {victim for pool in model.pools for victim in context.state.drains.started_in(model.name, pool)}
    removals: dict[str, Removal] = old(context, model, recommendation, proposal)
    return {
        name: replace(removal, victims=tuple(victim for victim in removal.victims if victim not in leaving))
        for name, removal in removals.items()
    }


def another_id() -> AbstractContextManager[Any]:
    """Return different effects for equal turns."""
    numbers = itertools.count()
    return patch.object(ledgers, "decision_id", lambda *_args: f"{next(numbers):016x}")


def begin_at_commit(old: Any, turn: Turn, model: str) -> None:
    old(turn, model)
    turn.state.drains.begin_held(model, turn.state.fleet, turn.now)


@contextlib.contextmanager
def one_victim() -> Iterator[None]:
    """Let a decision name one victim of a pool instead of 64, which is more than the simulated pools have."""
    with contextlib.ExitStack() as stack:
        for module in (removal_guardrails, victims, agent_state):
            stack.enter_context(patch.object(module, "DRAINS_MAX", 1))
        yield


# -- the mutations -----------------------------------------------------------------------------------------------------

MUTATIONS: dict[str, Mutation] = {
    "guardrails: replicas_min": Mutation(without_limit(ReasonCode.REPLICAS_MIN), 4, "I4-replicas"),
    "guardrails: replicas_max": Mutation(without_limit(ReasonCode.REPLICAS_MAX), 0, "I4-replicas"),
    "guardrails: gpu_budget_max": Mutation(wrapped(gpu_guardrails, "_bounded", no_ceiling), 1, "I4-budget"),
    "guardrails: gpu_budget_min": Mutation(wrapped(gpu_guardrails, "_bounded", no_floor), 1, "I4-budget"),
    "guardrails: draining workers occupy GPUs": Mutation(
        wrapped(gpu_guardrails, "_bounded", nobody_leaves), 3, "I4-occupied", hours=1.0
    ),
    "supply headroom: draining workers occupy GPUs": Mutation(
        constant(gpu_guardrails, "_limit_growth", None), 40, "I4-capacity", hours=1.0
    ),
    "guardrails: no shrink without data": Mutation(
        without_limit(ReasonCode.NO_DATA_NO_SHRINK), 32, "I6-data", hours=1.0
    ),
    "guardrails: quorum": Mutation(constant(Pool, "has_quorum", value=True), 32, "I6-data", hours=1.0),
    "guardrails: step_up": Mutation(without_limit(ReasonCode.STEP_UP), 0, "I5-step"),
    "guardrails: step_down": Mutation(without_limit(ReasonCode.STEP_DOWN), 56, "I5-step"),
    "guardrails: stabilisation": Mutation(without_limit(ReasonCode.STABILISATION), 1, "I8-window"),
    "guardrails: warm-up": Mutation(without_limit(ReasonCode.WARM_UP), 6, "I9-warm-up"),
    "guardrails: warm-up after a gap": Mutation(
        wrapped(Guardrails, "_record", always_warm), 3, "I9-warm-up", hours=1.0
    ),
    "guardrails: cooldown up": Mutation(without_limit(ReasonCode.COOLDOWN, growing=True), 0, "P3-cooldown"),
    "guardrails: cooldown down": Mutation(without_limit(ReasonCode.COOLDOWN, growing=False), 2, "P3-cooldown"),
    "gate: read first": Mutation(without_settling(read=False), 1, "I9-settled"),
    "gate: observe a new fleet": Mutation(without_settling(read=True), 7, "I9-young"),
    "gate: paused": Mutation(without_obstacle(ReasonCode.PAUSED), 15, "P5-paused"),
    "gate: bus down": Mutation(without_obstacle(ReasonCode.BUS_DOWN), 13, "P6-bus", hours=1.0),
    "gate: one in flight": Mutation(without_obstacle(ReasonCode.DECISION_IN_FLIGHT), 4, "I14-one"),
    "gate: back-off": Mutation(without_obstacle(ReasonCode.RETRY_BACKOFF), 23, "P2-back-off"),
    "gate: stopping": Mutation(without_obstacle(ReasonCode.STOPPING), 24, "I19-quiet", hours=1.0),
    "proposal: name leaving workers": Mutation(wrapped(propose, "_removals", victims_forgotten), 1, "I16-named"),
    "ledger: expiry": Mutation(lambda: patch.object(LedgerEntry, "expires_at_ms", NEVER), 0, "I15-expiry"),
    "ledger: give up after a full TTL": Mutation(wrapped(Ledger, "_adopt", no_end), 17, "I15-expiry", hours=1.0),
    "ledger: read back unknown outcomes": Mutation(handled(ev.CommitUnknown, forget_unknown), 4, "I17-truth"),
    "ledger: read again after a refusal": Mutation(
        handled(ev.CommitRefused, forget_refused), 0, "I9-settled", hours=1.0
    ),
    "ledger: a sequence is used once": Mutation(wrapped(Ledger, "drop_pending", use_again), 23, "I17-used", hours=1.0),
    "ledger: sequences continue": Mutation(wrapped(Ledger, "_adopt", start_over), 51, "I1-order"),
    "ledger: repeat announcements": Mutation(wrapped(Ledger, "tick", announce_once), 0, "P1-announced"),
    "ledger: observed counts": Mutation(handled(ev.DecisionAnswered, believe_counts), 0, "P4-answer", hours=1.0),
    "ledger: numbers of an answer": Mutation(handled(ev.DecisionAnswered, believe_numbers), 0, "P4-answer"),
    "ledger: same turns, same effects": Mutation(another_id, 9, "I11-replay"),
    "commit: lease": Mutation(without_compare("lease"), 3, "I2-fence", hours=1.0),
    "commit: revision": Mutation(without_compare("mod"), 3, "I1-order"),
    "leadership: deadline": Mutation(wrapped(Leadership, "_extend", no_deadline), 0, "I3-lease"),
    "leadership: margin": Mutation(wrapped(Leadership, "_extend", no_margin), 0, "I3-lease", hours=1.0),
    "leadership: lease counted from the request": Mutation(handled(ev.LeaseRenewed, from_the_answer), 0, "I3-lease"),
    "leadership: lease lost": Mutation(handled(ev.LeaseRenewalFailed, not_lost), 27, "I3-yield"),
    "leadership: another leads": Mutation(handled(ev.LeaderChanged, keep_leading), 13, "I3-yield", hours=1.0),
    "leadership: bus lost": Mutation(constant(Leadership, "_bus_lost_too_long", value=False), 31, "I3-blind"),
    "leadership: one request at a time": Mutation(wrapped(Leadership, "tick", ask_again), 0, "I3-one"),
    "leadership: resign last": Mutation(wrapped(leadership_handlers, "tick", resign_first), 3, "I19-quiet", hours=1.0),
    "guardrails: drains": Mutation(combined(one_victim, without_limit(ReasonCode.DRAIN_LIMIT)), 32, "I16-victims"),
    "drains: wait for a scaler": Mutation(wrapped(drain_handlers, "start_victims", begin_at_commit), 1, "I16-accepted"),
    "drains: only a leader": Mutation(constant(Drains, "abandon", None), 24, "I16-leader", hours=1.0),
    "drains: deadline": Mutation(wrapped(Drains, "start", no_drain_deadline), 4, "I16-drain", hours=1.0),
    "drains: not early": Mutation(constant(Drains, "_silent", value=True), 1, "I16-drain", hours=1.0),
    "drains: repeat commands": Mutation(wrapped(Drains, "record_answer", ask_to_drain_once), 4, "I16-asked", hours=1.0),
    "drains: revoke silent workers": Mutation(wrapped(Drains, "record_answer", never_revoke), 3, "I16-asked"),
    "drains: continue after a takeover": Mutation(
        constant(drain_handlers, "resume_drains", None), 4, "I16-goes-on", hours=1.0
    ),
    "fleet: newest sample": Mutation(wrapped(Fleet, "ingest", any_sample), 35, "I10-newest", hours=1.0),
    "fleet: uncount stale workers": Mutation(constant(Pool, "_uncount", None), 0, "I13-finite"),
    "leadership: campaign when nobody leads": Mutation(
        combined(wrapped(Leadership, "lost_campaign", give_up), wrapped(Leadership, "_release_lease", give_up)),
        4,
        "L1-leader",
        hours=1.0,
    ),
    "reconciliation: replace missing workers": Mutation(
        constant(reconciliation, "_replace_missing", []), 1, "L3-applied", hours=1.0
    ),
    "reconciliation: drain surplus workers": Mutation(
        constant(reconciliation, "_drain_surplus", []), 13, "L3-applied", hours=1.0
    ),
    "ledger: drop refused commits": Mutation(
        handled(ev.CommitRefused, lambda *_args: None), 12, "I9-settled", hours=1.0
    ),
    "planner: grow": Mutation(wrapped(ThresholdPlanner, "_decide_by_kv", no_growth), 2, "L2-reference", hours=1.0),
    "controller: wake": Mutation(constant(controller.Controller, "next_wake", None), 0, "L5-turning", hours=1.0),
    "scaler: fence": Mutation(wrapped(DecisionFence, "classify", never_stale), 19, "I2-applied", hours=1.0),
    "scaler: counts in force": Mutation(constant(CountsInForce, "unknown_to", {}), 45, "I16-known", hours=1.0),
}


def run_mutated(name: str, seed: int) -> ChaosResult:
    """Run the plan of a seed with a mutation."""
    mutation = MUTATIONS[name]
    with mutation.apply():
        return run_plan(seed, mutation.hours)


if __name__ == "__main__":
    find_seeds(MUTATIONS, run_mutated)
