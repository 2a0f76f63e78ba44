"""Checks of an agent's state after each of its turns: leadership, ledger, drains, totals and bounds."""

from typing import Final

from loadline.core.decisions.drains import Drain
from loadline.core.decisions.ledger import OPEN
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerLoad
from loadline.core.vocabulary.decisions import ApplyStatus, Decision
from loadline.core.vocabulary.effects import SendDrain
from loadline.core.vocabulary.events import DecisionAnswered
from loadline.sim.chaos.agent_history import AgentHistory
from loadline.sim.chaos.invariants import ReportViolation

_RECORDS_MAX: Final = 256
_SLACK_MS: Final = 1_000
"""Allowed delay of a due action in a busy agent."""


def check_turn(history: AgentHistory, now: int, report: ReportViolation) -> None:
    """Run the checks of every turn."""
    _check_leadership(history, now, report)
    _check_ledger(history, now, report)
    _check_drains(history, now, report)
    _check_victims(history, report)
    _check_bounds(history, report)


# -- leadership --------------------------------------------------------------------------------------------------------


def _check_leadership(history: AgentHistory, now: int, report: ReportViolation) -> None:
    leadership = history.agent.controller.state.leadership
    leads = leadership.phase == "leading"
    if leads and history.led_epoch == leadership.epoch == history.deposed_epoch:
        report("I3-yield", f"epoch {leadership.epoch} has ended")
    if leads and leadership.deadline_ms > history.deadline_ms:
        report("I3-lease", f"its deadline is {leadership.deadline_ms - history.deadline_ms} ms too late")
    blind_ms = now - history.bus_changed_ms
    if leads and not history.bus_connected and blind_ms >= history.settings.leadership.blind_after_ms:
        report("I3-blind", f"for {blind_ms} ms")
    if history.campaigns > 1 or max(history.keep_alive_calls.values(), default=0) > 1:
        report("I3-one", f"{history.campaigns} campaigns, keep-alive calls {history.keep_alive_calls}")
    history.led_epoch = leadership.epoch if leads else 0
    if history.stopping and not history.in_flight and leads and not history.unknown:
        report("I19-quiet", "still leading")


def check_resignation(history: AgentHistory, report: ReportViolation) -> None:
    """Check that an agent that shuts down revokes its lease only after all its commits."""
    underway = [key for key in history.in_flight if key[1] == history.led_epoch]
    if history.stopping and underway and not history.deposed_epoch and not _must_yield(history):
        report("I19-quiet", f"the lease is given back with commits {underway} in flight")


def _must_yield(history: AgentHistory) -> bool:
    """Return True if it must give the lease back regardless of commits in flight."""
    now = history.agent.clock.now_ms()
    blind = not history.bus_connected and now - history.bus_changed_ms >= history.settings.leadership.blind_after_ms
    return blind or now >= history.deadline_ms


# -- the ledger --------------------------------------------------------------------------------------------------------


def _check_ledger(history: AgentHistory, now: int, report: ReportViolation) -> None:
    state = history.agent.controller.state
    knobs = history.settings.decisions
    ledger_states: dict[str, tuple[str, str]] = {}
    for model, entry in state.ledger.entries.items():
        decision = entry.decision
        if decision is None:
            continue
        known, before = history.ledger_states.get(model, ("", ""))
        if known == decision.decision_id and before in OPEN and entry.state in {"applied", "refused"}:
            _check_answer(history, decision, "done" if entry.state == "applied" else "refused", report)
        if entry.state == "accepted" and (known, before) != (decision.decision_id, "accepted"):
            history.announced[model] = (decision.decision_id, now)
        ledger_states[model] = (decision.decision_id, entry.state)
        unknown = history.unknown.get(model)
        if unknown is not None and unknown[0] == decision.decision_id:
            del history.unknown[model]  # a read in the same turn has resolved it
        if state.leading and entry.state in OPEN:
            announced, at_ms = history.announced.get(model, ("", now))
            interval_ms = knobs.announce_interval_max_ms if entry.state == "accepted" else knobs.announce_interval_ms
            if announced != decision.decision_id or now - at_ms >= interval_ms + _SLACK_MS:
                report("P1-announced", f"{decision.decision_id} of {model}, {now - at_ms} ms ago")
        if entry.pending is not None and entry.pending.sequence != entry.sequence:
            report("I17-used", f"sequence {entry.sequence} with {entry.pending.sequence} pending")
    history.ledger_states = ledger_states


def _check_answer(history: AgentHistory, decision: Decision, status: ApplyStatus, report: ReportViolation) -> None:
    """Check that a matching answer has closed the decision."""
    if not any(_matches(answer, decision, status) for answer in history.answers):
        report("P4-answer", f"{decision.decision_id} is {status}, answers are {history.answers}")


def _matches(answer: DecisionAnswered, decision: Decision, status: ApplyStatus) -> bool:
    numbers = decision.decision_id, decision.epoch, decision.sequence
    if answer.status != status or (answer.decision_id, answer.epoch, answer.sequence) != numbers:
        return False
    counts = answer.observed if status == "done" else {}
    return all(counts.get(target.pool, target.replicas) == target.replicas for target in decision.targets)


# -- drains ------------------------------------------------------------------------------------------------------------


def _check_drains(history: AgentHistory, now: int, report: ReportViolation) -> None:
    state = history.agent.controller.state
    if not state.leading:
        if state.drains.open:
            report("I16-leader", f"{len(state.drains.open)} drains are open")
        history.draining.clear()
        history.drain_requested_ms.clear()
        history.drain_failures.clear()
        return
    _check_deaths(history, report)
    for key, drain in state.drains.open.items():
        if not drain.held:
            _check_drain(history, key, drain, now, report)
    for key in [key for key in history.draining if key not in state.drains.open]:
        history.drain_failures.pop(key, None)
        _check_drain_end(history, key, *history.draining.pop(key), now, report)


def _check_drain(history: AgentHistory, key: str, drain: Drain, now: int, report: ReportViolation) -> None:
    """Check a drain that is not held."""
    knobs = history.settings.drain
    worker = history.agent.controller.state.fleet.models[drain.model].pools[drain.pool].workers.get(drain.worker)
    if worker is None or not worker.draining:
        report("I16-drain", f"{drain.worker} drains and is {'unknown' if worker is None else 'supply'}")
    deadline_ms = drain.started_at_ms + knobs.ttl_ms
    if now >= deadline_ms:
        report("I16-drain", f"{drain.worker} is {now - deadline_ms} ms past its deadline")
    history.draining[key] = (drain.incarnation, deadline_ms)
    if drain.accepted:
        return
    connected_ms = now - history.bus_changed_ms if history.bus_connected else 0
    asked_ms = history.drain_requested_ms.get(drain.drain_id + drain.worker, drain.started_at_ms)
    if min(now - asked_ms, connected_ms) > 5 * knobs.retry_ms + _SLACK_MS:
        report("I16-asked", f"the last command to {drain.worker} is {now - asked_ms} ms old")
    if history.drain_failures.get(key, 0) >= knobs.revoke_after and not drain.key_removed:
        report("I16-asked", f"{drain.worker} does not answer and keeps its key")


def check_drain_command(history: AgentHistory, command: SendDrain, report: ReportViolation) -> None:
    """Check that a scaler has accepted a decision that names the worker, unless an operator requested the drain."""
    named = command.model, command.pool, command.worker, command.incarnation
    if not command.drain_id.startswith("operator-") and named not in history.accepted_victims:
        report("I16-accepted", f"{command.worker} is commanded to drain")


def _check_drain_end(  # noqa: PLR0917 - one argument for each fact
    history: AgentHistory, key: str, incarnation: int, deadline_ms: int, now: int, report: ReportViolation
) -> None:
    model, pool, name = key.split("\0")
    fleet = history.agent.controller.state.fleet
    if now >= deadline_ms or (model, pool, name) in history.drained_workers or model not in fleet.models:
        return  # a model removed from the settings has no drains
    worker = fleet.models[model].pools[pool].workers.get(name)
    has_new_incarnation = worker is not None and worker.record.incarnation != incarnation
    endings = [one for one in history.agent.controller.state.drains.finished if one.worker == name][-2:]
    if not any(one.ending == "died" for one in endings) or not (worker is None or has_new_incarnation):
        report("I16-drain", f"the drain of {name} ended {deadline_ms - now} ms early: {endings}")


def _check_deaths(history: AgentHistory, report: ReportViolation) -> None:
    """Check that no worker is declared dead before it is stale, unless a new incarnation has registered."""
    state = history.agent.controller.state
    for one in reversed(state.drains.finished):
        if one is history.last_finished:
            break
        instances = [
            pool.workers.get(one.worker) for model in state.fleet.models.values() for pool in model.pools.values()
        ]
        has_new_incarnation = any(worker is not None and not worker.draining for worker in instances)
        if one.ending == "died" and one.took_ms < history.settings.fleet.stale_after_ms and not has_new_incarnation:
            report("I16-drain", f"{one.worker} was declared dead after {one.took_ms} ms")
    history.last_finished = state.drains.finished[-1] if state.drains.finished else None


def _check_victims(history: AgentHistory, report: ReportViolation) -> None:
    """Check that a leader drains the victims of all current decisions, its predecessors' included."""
    state = history.agent.controller.state
    if history.store_went_back or not (state.leading and history.acting and history.registry_read):
        return  # after a loss of data it has to read which decisions are left
    for model, entry in state.ledger.entries.items():
        waits_or_accepted = entry.accepted or entry.state == "committed"
        for target in entry.decision.targets if entry.decision and waits_or_accepted else ():
            workers = state.fleet.models[model].pools[target.pool].workers
            for victim in target.victims:
                worker = workers.get(victim.worker)
                if worker is not None and worker.record.incarnation == victim.incarnation and not worker.draining:
                    report("I16-goes-on", f"victim {victim.worker} of {model} is not draining")


# -- bounds and totals -------------------------------------------------------------------------------------------------


def _check_bounds(history: AgentHistory, report: ReportViolation) -> None:
    state = history.agent.controller.state
    if len(state.explanations.entries) > _RECORDS_MAX or len(state.drains.finished) > _RECORDS_MAX:
        report("I14-bounded", f"{len(state.explanations.entries)} explanations, {len(state.drains.finished)} drains")
    if len(state.ledger.live) > len(history.models):
        report("I14-bounded", f"{len(state.ledger.live)} open decisions")


def check_totals(history: AgentHistory, now: int, report: ReportViolation) -> None:
    """Compare the incremental totals of the fleet with totals computed from scratch."""
    fleet = history.agent.controller.state.fleet
    workers = 0
    for model in fleet.models.values():
        for pool in model.pools.values():
            workers += len(pool.workers)
            counted = [worker for worker in pool.workers.values() if worker.counted]
            total = WorkerLoad()
            for worker in counted:
                total.replace(WorkerLoad(), worker.load)
            _check_newest_samples(history, pool, report)
            phases = [worker.counted_as for worker in pool.workers.values()]
            actual = (pool.fresh, pool.ready, pool.starting, pool.load)
            expected = (len(counted), phases.count("ready"), phases.count("starting"), total)
            if actual != expected or min(total.kv_micro, total.waiting, total.running, pool.overdue) < 0:
                report("I13-finite", f"{model.name}/{pool.name}: {actual}, expected {expected}")
    history.totals_checked_ms = now
    if fleet.workers != workers:
        report("I14-bounded", f"the total of workers is {fleet.workers}, expected {workers}")


def _check_newest_samples(history: AgentHistory, pool: Pool, report: ReportViolation) -> None:
    """Check that the newest sample of a worker is never replaced by an older one."""
    for worker in pool.workers.values():
        key = f"{worker.record.model}\0{pool.name}\0{worker.record.worker}"
        newest = worker.latest[0].sequence if worker.latest and worker.latest[0] else -1
        incarnation, before = history.newest_samples.get(key, (-1, -1))
        if (
            incarnation == worker.record.incarnation
            and newest < before
            and worker.registered_at_ms <= history.totals_checked_ms
        ):
            report("I10-newest", f"{worker.record.worker} from {before} to {newest}")
        history.newest_samples[key] = (worker.record.incarnation, newest)
