"""What must hold of what an agent believes after each of its turns: leadership, ledger, drains, sums and bounds."""

from typing import Final

from loadline.core.decisions.ledger import OPEN
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerLoad
from loadline.core.vocabulary.decisions import ApplyStatus, Decision
from loadline.core.vocabulary.events import DecisionAnswered
from loadline.sim.chaos.agent_history import AgentHistory
from loadline.sim.chaos.commit_checks import Report

_KEPT_MAX: Final = 256
_SLACK_MS: Final = 1_000
"""From when something is due until the turn in which it is done, in an agent that has much to do."""


def check_turn(memory: AgentHistory, now: int, report: Report) -> None:
    """Everything that is judged in every turn."""
    _leadership(memory, now, report)
    _ledger(memory, now, report)
    _drains(memory, now, report)
    _victims(memory, report)
    _bounded(memory, report)


# -- leadership --------------------------------------------------------------------------------------------------------


def _leadership(memory: AgentHistory, now: int, report: Report) -> None:
    leadership = memory.agent.controller.state.leadership
    leads = leadership.phase == "leading"
    if leads and memory.led_epoch == leadership.epoch == memory.deposed_epoch:
        report("I3-yield", f"epoch {leadership.epoch} is over")
    if leads and leadership.deadline_ms > memory.deadline_ms:
        report("I3-lease", f"it believes in its lease for {leadership.deadline_ms - memory.deadline_ms} ms too long")
    blind_ms = now - memory.bus_changed_ms
    if leads and not memory.bus_connected and blind_ms >= memory.settings.leadership.blind_after_ms:
        report("I3-blind", f"for {blind_ms} ms")
    if memory.campaigns > 1 or max(memory.renewals.values(), default=0) > 1:
        report("I3-one", f"{memory.campaigns} campaigns, renewals {memory.renewals}")
    memory.led_epoch = leadership.epoch if leads else 0
    if memory.stopping and not memory.in_flight and leads and not _pending(memory):
        report("I19-quiet", "it still leads")


def check_resignation(memory: AgentHistory, report: Report) -> None:
    """The lease is given back; who was asked to stop does that last."""
    underway = [key for key in memory.in_flight if key[1] == memory.led_epoch]
    if memory.stopping and underway and not memory.deposed_epoch and not _must_yield(memory):
        report("I19-quiet", f"the lease is given back while {underway} is being committed")


def _must_yield(memory: AgentHistory) -> bool:
    """Whether it gives the lease back because it may not lead any more, whatever is under way."""
    now = memory.agent.clock.now_ms()
    blind = not memory.bus_connected and now - memory.bus_changed_ms >= memory.settings.leadership.blind_after_ms
    return blind or now >= memory.deadline_ms


def _pending(memory: AgentHistory) -> bool:
    """Whether an outcome is still to be found out by reading."""
    return bool(memory.unknown)


# -- the ledger --------------------------------------------------------------------------------------------------------


def _ledger(memory: AgentHistory, now: int, report: Report) -> None:
    state = memory.agent.controller.state
    knobs = memory.settings.decisions
    standing: dict[str, tuple[str, str]] = {}
    for model, entry in state.ledger.entries.items():
        decision = entry.decision
        if decision is None:
            continue
        known, before = memory.ledger_states.get(model, ("", ""))
        if known == decision.decision_id and before in OPEN and entry.state in {"applied", "refused"}:
            _closed_by(memory, decision, "done" if entry.state == "applied" else "refused", report)
        if entry.state == "accepted" and (known, before) != (decision.decision_id, "accepted"):
            memory.announced[model] = (decision.decision_id, now)
        standing[model] = (decision.decision_id, entry.state)
        unknown = memory.unknown.get(model)
        if unknown is not None and unknown[0] == decision.decision_id:
            del memory.unknown[model]  # a read of the same turn has shown it
        if state.leading and entry.state in OPEN:
            announced, at_ms = memory.announced.get(model, ("", now))
            interval_ms = knobs.announce_interval_max_ms if entry.state == "accepted" else knobs.announce_interval_ms
            if announced != decision.decision_id or now - at_ms >= interval_ms + _SLACK_MS:
                report("P1-announced", f"{decision.decision_id} of {model}, {now - at_ms} ms ago")
        if entry.pending is not None and entry.pending.sequence != entry.sequence:
            report("I17-used", f"{entry.sequence} is reached while {entry.pending.sequence} is pending")
    memory.ledger_states = standing


def _closed_by(memory: AgentHistory, decision: Decision, status: ApplyStatus, report: Report) -> None:
    """It was open and is closed: somebody has said so, and meant this one."""
    if not any(_fits(answer, decision, status) for answer in memory.answers):
        report("P4-answer", f"{decision.decision_id} is {status}, heard were {memory.answers}")


def _fits(answer: DecisionAnswered, decision: Decision, status: ApplyStatus) -> bool:
    numbers = decision.decision_id, decision.epoch, decision.sequence
    if answer.status != status or (answer.decision_id, answer.epoch, answer.sequence) != numbers:
        return False
    counts = answer.observed if status == "done" else {}
    return all(counts.get(target.pool, target.replicas) == target.replicas for target in decision.targets)


# -- drains ------------------------------------------------------------------------------------------------------------


def _drains(memory: AgentHistory, now: int, report: Report) -> None:
    state = memory.agent.controller.state
    if not state.leading:
        if state.drains.open:
            report("I16-leader", f"{len(state.drains.open)} drains are open")
        memory.draining.clear()
        memory.drain_requested_ms.clear()
        memory.drain_failures.clear()
        return
    _died(memory, report)
    knobs = memory.settings.drain
    hearing_ms = now - memory.bus_changed_ms if memory.bus_connected else 0
    for key, drain in state.drains.open.items():
        worker = state.fleet.models[drain.model].pools[drain.pool].workers.get(drain.worker)
        if worker is None or not worker.draining:
            report("I16-drain", f"{drain.worker} drains and {'is not known' if worker is None else 'is supply'}")
        deadline_ms = drain.started_at_ms + knobs.ttl_ms
        if now >= deadline_ms:
            report("I16-drain", f"{drain.worker} is {now - deadline_ms} ms past its deadline")
        memory.draining[key] = (drain.incarnation, deadline_ms)
        if drain.accepted:
            continue
        asked_ms = memory.drain_requested_ms.get(drain.drain_id + drain.worker, drain.started_at_ms)
        if min(now - asked_ms, hearing_ms) > 5 * knobs.retry_ms + _SLACK_MS:
            report("I16-asked", f"{drain.worker} was last asked {now - asked_ms} ms ago")
        if memory.drain_failures.get(key, 0) >= knobs.revoke_after and not drain.revoked:
            report("I16-asked", f"{drain.worker} does not answer, and keeps its lease")
    for key in [key for key in memory.draining if key not in state.drains.open]:
        memory.drain_failures.pop(key, None)
        _closed(memory, key, *memory.draining.pop(key), now, report)


def _closed(  # noqa: PLR0917 - one argument for each fact
    memory: AgentHistory, key: str, incarnation: int, deadline_ms: int, now: int, report: Report
) -> None:
    model, pool, name = key.split("\0")
    fleet = memory.agent.controller.state.fleet
    if now >= deadline_ms or (model, pool, name) in memory.drained_workers or model not in fleet.models:
        return  # what was taken out of the settings is nobody's to drain any more
    worker = fleet.models[model].pools[pool].workers.get(name)
    reborn = worker is not None and worker.record.incarnation != incarnation
    endings = [one for one in memory.agent.controller.state.drains.finished if one.worker == name][-2:]
    if not any(one.ending == "died" for one in endings) or not (worker is None or reborn):
        report("I16-drain", f"the drain of {name} was closed {deadline_ms - now} ms before its time: {endings}")


def _died(memory: AgentHistory, report: Report) -> None:
    """Nobody is taken for dead sooner than silence can tell, but for who has another life already."""
    state = memory.agent.controller.state
    for one in reversed(state.drains.finished):
        if one is memory.last_finished:
            break
        lives = [pool.workers.get(one.worker) for model in state.fleet.models.values() for pool in model.pools.values()]
        reborn = any(worker is not None and not worker.draining for worker in lives)
        if one.ending == "died" and one.took_ms < memory.settings.fleet.stale_after_ms and not reborn:
            report("I16-drain", f"{one.worker} was taken for dead after {one.took_ms} ms")
    memory.last_finished = state.drains.finished[-1] if state.drains.finished else None


def _victims(memory: AgentHistory, report: Report) -> None:
    """Whoever leads goes on with the victims of what stands, whoever chose them."""
    state = memory.agent.controller.state
    if not (state.leading and memory.acting and memory.registry_read):
        return
    for model, entry in state.ledger.entries.items():
        for target in entry.decision.targets if entry.decision else ():
            workers = state.fleet.models[model].pools[target.pool].workers
            for victim in target.victims:
                worker = workers.get(victim.worker)
                if worker is not None and worker.record.incarnation == victim.incarnation and not worker.draining:
                    report("I16-goes-on", f"{victim.worker} of {model} is a victim and is not drained")


# -- bounds and sums ---------------------------------------------------------------------------------------------------


def _bounded(memory: AgentHistory, report: Report) -> None:
    state = memory.agent.controller.state
    if len(state.explanations) > _KEPT_MAX or len(state.drains.finished) > _KEPT_MAX:
        report("I14-bounded", f"{len(state.explanations)} explanations, {len(state.drains.finished)} drains")
    if len(state.ledger.live) > len(memory.models):
        report("I14-bounded", f"{len(state.ledger.live)} open decisions")


def check_totals(memory: AgentHistory, now: int, report: Report) -> None:
    """What is counted as it comes and goes, counted anew."""
    fleet = memory.agent.controller.state.fleet
    workers = 0
    for model in fleet.models.values():
        for pool in model.pools.values():
            workers += len(pool.workers)
            counted = [worker for worker in pool.workers.values() if worker.counted]
            total = WorkerLoad()
            for worker in counted:
                total.replace(WorkerLoad(), worker.load)
            _newest(memory, pool, report)
            standings = [worker.counted_as for worker in pool.workers.values()]
            believed = (pool.fresh, pool.ready, pool.starting, pool.load)
            anew = (len(counted), standings.count("ready"), standings.count("starting"), total)
            if believed != anew or min(total.kv_micro, total.waiting, total.running, pool.late) < 0:
                report("I13-finite", f"{model.name}/{pool.name}: {believed}, counted anew {anew}")
    memory.totals_checked_ms = now
    if fleet.workers != workers:
        report("I14-bounded", f"{fleet.workers} workers are counted, {workers} are known")


def _newest(memory: AgentHistory, pool: Pool, report: Report) -> None:
    """What is newest of a worker is never replaced by what is older."""
    for worker in pool.workers.values():
        key = f"{worker.record.model}\0{pool.name}\0{worker.record.worker}"
        newest = worker.latest[0].sequence if worker.latest and worker.latest[0] else -1
        incarnation, before = memory.newest_samples.get(key, (-1, -1))
        if (
            incarnation == worker.record.incarnation
            and newest < before
            and worker.registered_at_ms <= memory.totals_checked_ms
        ):
            report("I10-newest", f"{worker.record.worker} from {before} to {newest}")
        memory.newest_samples[key] = (worker.record.incarnation, newest)
