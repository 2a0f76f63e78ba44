"""Rails that can be switched off, to prove that the net catches what then goes wrong.

Without a rail some seed of the set that CI plays breaks what the rail is for. The first that is known to is named
with it, and played first: with each change of what agents do, what happens in an hour changes too, and others are
tried. To find them anew: ``python -m tests.simulation.rails``.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from msgspec.structs import replace

from loadline.client.fence import DecisionFence, Freshness
from loadline.core import controller
from loadline.core.decisions import ledger as ledgers
from loadline.core.decisions.drains import Drains
from loadline.core.decisions.leadership import Leadership
from loadline.core.decisions.ledger import Ledger, LedgerEntry
from loadline.core.fleet.fleet import Fleet
from loadline.core.fleet.pool import Pool
from loadline.core.handlers import drains as drain_handlers
from loadline.core.handlers import leadership as leadership_handlers
from loadline.core.handlers.turn import Turn
from loadline.core.planning.guardrails import gpu_guardrails
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.rounds import reconciliation as renewals
from loadline.core.rounds.scaling import gate, propose
from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.effects import AnnounceDecision
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.ports import Compare
from loadline.runtime import effects as effect_runner
from loadline.sim.chaos.runner import ChaosResult as Played
from loadline.sim.chaos.runner import run_plan

CI_SEEDS = range(100)
NEVER = 2**53
SEEDS_TRIED = 60
SEEDS_PLAYED = 12
"""Of each rail in a test: one that needs more is due for another seed."""

Off = Callable[[], AbstractContextManager[Any]]


class Rail(NamedTuple):
    """What switches it off, and which seed then breaks which invariant."""

    off: Off
    seed: int
    breaks: str


# -- ways of switching off ---------------------------------------------------------------------------------------------


def around(owner: Any, name: str, new: Callable[..., Any]) -> Off:
    """Let ``new(old, *args)`` take the place of a function or method."""

    @contextlib.contextmanager
    def off() -> Iterator[None]:
        old = getattr(owner, name)
        with patch.object(owner, name, lambda *args, **kwargs: new(old, *args, **kwargs)):
            yield

    return off


def instead(owner: Any, name: str, value: Any) -> Off:
    """Let a value be what the function or method gives."""
    return around(owner, name, lambda _old, *_args, **_kwargs: value)


def event(kind: type[ev.AnyEvent], new: Callable[..., Any]) -> Off:
    """Let ``new(old, turn, event)`` handle events of a kind."""
    old = controller.HANDLERS[kind]
    return lambda: patch.dict(controller.HANDLERS, {kind: lambda turn, event: new(old, turn, event)})


def bound(*codes: ReasonCode, growing: bool | None = None) -> Off:
    """Let a rail of the guard bite no more; only where it holds growth, or only where it holds shrink."""

    def ignore(  # noqa: PLR0917 - as it is
        old: Any, draft: Proposal, code: ReasonCode, pool: str, allowed: int, detail: str = "", **numbers: float
    ) -> None:
        held_growth = allowed < draft.targets[pool]
        if code not in codes or (growing is not None and held_growth != growing):
            old(draft, code, pool, allowed, detail, **numbers)

    return around(Proposal, "limit", ignore)


def obstacle(code: ReasonCode) -> Off:
    """Let one obstacle be none."""

    def ignore(old: Any, state: AgentState, model: ModelState, now: int) -> Reason | None:
        found = old(state, model, now)
        return None if found is not None and found.code == code else found

    return around(gate, "obstacle", ignore)


def unsettled(*, read: bool) -> Off:
    """Let a leader decide before it has read everything, or (``read``) before it has watched a young fleet."""

    def ignore(old: Any, state: AgentState, model: ModelState, now: int) -> Reason | None:
        found = old(state, model, now)
        known = state.registry_read and state.decisions_read
        off = found is not None and found.code == ReasonCode.NOT_SETTLED and known == read
        return None if off else found

    return around(gate, "unsettled", ignore)


def compare(target: str) -> Off:
    """Let a comparison of a commit hold always; that of a campaign stays."""
    always = Compare("nobody's", "mod", 0)

    def ignore(old: Any, key: str, what: str, revision: int) -> Compare:
        campaign = what == "create" and revision == 0
        return always if what == target and not campaign else old(key, what, revision)

    return around(effect_runner, "Compare", ignore)


def both(*offs: Off) -> Off:
    """Switch off several at once: each would do."""

    @contextlib.contextmanager
    def off() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in offs:
                stack.enter_context(one())
            yield

    return off


# -- what takes the place of production code ---------------------------------------------------------------------------


def always_warm(old: Any, rails: Guardrails, pool: Pool, proposed: int, granted: int, now: int) -> Any:  # noqa: PLR0917 - as it is
    track = old(rails, pool, proposed, granted, now)
    track.quorate_since_ms = -1
    return track


def no_ceiling(old: Any, legs: Any, band: GpuBand, _free: int | None) -> Any:
    return old(legs, GpuBand(floor=band.floor), None)


def no_floor(old: Any, legs: Any, band: GpuBand, free: int | None) -> Any:
    return old(legs, GpuBand(ceiling=band.ceiling), free)


def nobody_leaves(old: Any, legs: Any, band: GpuBand, _free: int | None) -> Any:
    return old(legs, band, None)


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


def no_deadline(old: Any, leadership: Leadership, asked_at_ms: int) -> None:
    old(leadership, asked_at_ms)
    leadership.deadline_ms = NEVER


def no_margin(old: Any, leadership: Leadership, asked_at_ms: int) -> None:
    old(leadership, asked_at_ms)
    leadership.deadline_ms += leadership.knobs.margin_ms


def from_the_answer(old: Any, turn: Turn, event: ev.LeaseRenewed) -> Any:
    return old(turn, replace(event, asked_at_ms=turn.now))


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
        drain.ask_at_ms = NEVER
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


def never_stale(old: Any, fence: DecisionFence, decision: Any) -> Any:
    verdict = old(fence, decision)
    return Freshness.NEW if verdict is Freshness.STALE else verdict


def victims_forgotten(old: Any, context: Any, model: ModelState, pool: Pool, replicas: int) -> Any:
    leaving = context.state.drains.of_pool(model.name, pool.name)
    return tuple(victim for victim in old(context, model, pool, replicas) if victim not in leaving)


def another_id() -> AbstractContextManager[Any]:
    """The same turns give other effects."""
    numbers = itertools.count()
    return patch.object(ledgers, "decision_id", lambda *_args: f"{next(numbers):016x}")


# -- the rails ---------------------------------------------------------------------------------------------------------

RAILS: dict[str, Rail] = {
    "guard: replicas_min": Rail(bound(ReasonCode.REPLICAS_MIN), 0, "I4-replicas"),
    "guard: replicas_max": Rail(bound(ReasonCode.REPLICAS_MAX), 0, "I4-replicas"),
    "guard: gpu_budget_max": Rail(around(gpu_guardrails, "_bounded", no_ceiling), 1, "I4-budget"),
    "guard: gpu_budget_min": Rail(around(gpu_guardrails, "_bounded", no_floor), 0, "I4-budget"),
    "guard: GPUs of who drains are occupied": Rail(around(gpu_guardrails, "_bounded", nobody_leaves), 3, "I4-occupied"),
    "room: GPUs of who drains are occupied": Rail(instead(gpu_guardrails, "_limit_growth", None), 40, "I4-capacity"),
    "guard: no data, no shrink": Rail(bound(ReasonCode.NO_DATA_NO_SHRINK), 32, "I6-data"),
    "guard: quorum": Rail(instead(Pool, "has_quorum", value=True), 32, "I6-data"),
    "guard: step_up": Rail(bound(ReasonCode.STEP_UP), 0, "I5-step"),
    "guard: step_down": Rail(bound(ReasonCode.STEP_DOWN), 0, "I5-step"),
    "guard: stabilisation": Rail(bound(ReasonCode.STABILISATION), 0, "I8-window"),
    "guard: warm-up": Rail(bound(ReasonCode.WARM_UP), 2, "I9-warm-up"),
    "guard: warm-up after a gap": Rail(around(Guardrails, "_record", always_warm), 3, "I9-warm-up"),
    "guard: cooldown up": Rail(bound(ReasonCode.COOLDOWN, growing=True), 0, "P3-cooldown"),
    "guard: cooldown down": Rail(bound(ReasonCode.COOLDOWN, growing=False), 0, "P3-cooldown"),
    "decide: read first": Rail(unsettled(read=False), 4, "I9-settled"),
    "decide: watch a young fleet": Rail(unsettled(read=True), 7, "I9-young"),
    "decide: paused": Rail(obstacle(ReasonCode.PAUSED), 1, "P5-paused"),
    "decide: bus away": Rail(obstacle(ReasonCode.BUS_DOWN), 15, "P6-bus"),
    "decide: one in flight": Rail(obstacle(ReasonCode.DECISION_IN_FLIGHT), 0, "I14-one"),
    "decide: back-off": Rail(obstacle(ReasonCode.RETRY_BACKOFF), 4, "P2-back-off"),
    "decide: stopping": Rail(obstacle(ReasonCode.STOPPING), 15, "I19-quiet"),
    "decide: name who leaves": Rail(around(propose, "_victims", victims_forgotten), 0, "I16-named"),
    "ledger: expiry": Rail(lambda: patch.object(LedgerEntry, "expires_at_ms", NEVER), 0, "I15-expiry"),
    "ledger: give up after a whole ttl": Rail(around(Ledger, "_adopt", no_end), 0, "I15-expiry"),
    "ledger: read back what is unknown": Rail(event(ev.CommitUnknown, forget_unknown), 4, "I17-truth"),
    "ledger: read again when refused": Rail(event(ev.CommitRefused, forget_refused), 10, "I9-settled"),
    "ledger: a sequence is used once": Rail(around(Ledger, "drop_pending", use_again), 7, "I17-used"),
    "ledger: sequences go on": Rail(around(Ledger, "_adopt", start_over), 0, "I1-order"),
    "ledger: announce again": Rail(around(Ledger, "tick", announce_once), 0, "P1-announced"),
    "ledger: observed counts": Rail(event(ev.DecisionAnswered, believe_counts), 0, "P4-answer"),
    "ledger: numbers of an answer": Rail(event(ev.DecisionAnswered, believe_numbers), 0, "P4-answer"),
    "ledger: same turns, same effects": Rail(another_id, 1, "I11-replay"),
    "commit: epoch": Rail(compare("create"), 3, "I2-fence"),
    "commit: revision": Rail(compare("mod"), 10, "I1-order"),
    "leadership: deadline": Rail(around(Leadership, "_extend", no_deadline), 0, "I3-lease"),
    "leadership: margin": Rail(around(Leadership, "_extend", no_margin), 0, "I3-lease"),
    "leadership: from the request": Rail(event(ev.LeaseRenewed, from_the_answer), 0, "I3-lease"),
    "leadership: lease lost": Rail(event(ev.LeaseRenewalFailed, not_lost), 0, "I3-yield"),
    "leadership: another leads": Rail(event(ev.LeaderChanged, keep_leading), 0, "I3-yield"),
    "leadership: blind": Rail(instead(Leadership, "_blind", value=False), 2, "I3-blind"),
    "leadership: one request at a time": Rail(around(Leadership, "tick", ask_again), 0, "I3-one"),
    "leadership: resign last": Rail(around(leadership_handlers, "keep", resign_first), 13, "I19-quiet"),
    "drains: only a leader": Rail(instead(Drains, "abandon", None), 0, "I16-leader"),
    "drains: deadline": Rail(around(Drains, "start", no_drain_deadline), 0, "I16-drain"),
    "drains: not before its end": Rail(instead(Drains, "_silent", value=True), 0, "I16-drain"),
    "drains: ask again": Rail(around(Drains, "record_answer", ask_to_drain_once), 2, "I16-asked"),
    "drains: revoke who never answers": Rail(around(Drains, "record_answer", never_revoke), 5, "I16-asked"),
    "drains: go on after a takeover": Rail(instead(drain_handlers, "resume_drains", None), 0, "I16-goes-on"),
    "fleet: newest sample": Rail(around(Fleet, "ingest", any_sample), 1, "I10-newest"),
    "fleet: forget who is silent": Rail(instead(Pool, "_uncount", None), 0, "I13-finite"),
    "leadership: campaign when nobody leads": Rail(
        both(around(Leadership, "lost_campaign", give_up), around(Leadership, "_give_back", give_up)), 4, "L1-leader"
    ),
    "decide: ask again for who is missing": Rail(instead(renewals, "_replace_missing", []), 1, "L3-applied"),
    "decide: drain who is too much": Rail(instead(renewals, "_drain_surplus", []), 13, "L3-applied"),
    "ledger: drop what was refused": Rail(event(ev.CommitRefused, lambda *_args: None), 12, "L4-hold"),
    "planner: grow": Rail(around(ThresholdPlanner, "_judge_kv", no_growth), 1, "L2-reference"),
    "controller: wake": Rail(instead(controller.Controller, "next_wake", None), 0, "L5-turning"),
    "scaler: fence": Rail(around(DecisionFence, "judge", never_stale), 12, "I2-applied"),
}


def broken(name: str, seed: int) -> Played:
    """What a seed comes to without a rail."""
    with RAILS[name].off():
        return run_plan(seed)


def assert_missed(rail: Rail) -> None:
    """Without a rail its invariant breaks, in the seed that is named with it or in one of some others."""
    found: dict[int, str] = {}
    for seed in [rail.seed, *(seed for seed in CI_SEEDS if seed != rail.seed)][:SEEDS_PLAYED]:
        with rail.off():
            violation = run_plan(seed).violation
        if violation is not None and violation.name == rail.breaks:
            return
        found[seed] = "nothing" if violation is None else violation.name
    raise AssertionError(f"{rail.breaks} is not broken, but {found}; find a seed: python -m tests.simulation.rails")


def find(rails: Mapping[str, Rail], broken: Callable[[str, int], Played]) -> None:
    """Print what each rail breaks, seed by seed, until it is what the list says; only rails with the words given."""
    wanted = [name for name in rails if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    with ProcessPoolExecutor(2) as pool:
        for name in wanted:
            found = pool.map(partial(broken, name), CI_SEEDS, chunksize=1)
            for verdict in itertools.islice(found, SEEDS_TRIED):
                if verdict.violation:
                    sys.stdout.write(f"{name}: {verdict.seed}, {verdict.violation.name} ({verdict.hours} h)\n")
                if verdict.violation and verdict.violation.name == rails[name].breaks:
                    break
            else:
                sys.stdout.write(f"{name}: {rails[name].breaks} is not broken\n")


if __name__ == "__main__":
    find(RAILS, broken)
