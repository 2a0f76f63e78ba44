"""Faults from outside: operators, demand, announcement requests and invalid messages."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from loadline.core.vocabulary.events import AnnouncementRequested, DrainRequested, PauseRequested
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.ports import Write
from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo, pick
from loadline.sim.chaos.plan import Fault
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DecisionApplied, DrainReport, LoadReport, ScalingDecision
from loadline.wire.subjects import Subjects

_BY: Final = "fault-injector"
_KEYS: Final = Keys("default")
_SUBJECTS: Final = Subjects("loadline")
_DEMANDS: Final = (0.0, 0.1, 0.7, 1.5, 2.5, 3.5, 6.0, 12.0)
_HUGE: Final = WorkerSample(0, 0, kv_blocks_used=2**50, kv_blocks_total=1, waiting_requests=2**50)


def model_paused(injector: FaultInjector, fault: Fault) -> Undo:
    """Pause a model for a while."""
    world = injector.world
    model = pick(sorted(world.models), fault.level)[0]
    _send_to_all(injector, PauseRequested(model, paused=True, by=_BY))

    def resume() -> None:
        _send_to_all(injector, PauseRequested(model, paused=False, by=_BY))
        if world.store.available:  # agents without a store write nothing
            world.store.commit([], [Write(_KEYS.pause(model), None)])

    return resume


def worker_drain_requested(injector: FaultInjector, fault: Fault) -> Undo:
    """Request the drain of one worker."""
    for _, worker in pick(sorted(injector.world.workers.items()), fault.level):
        record = worker.record
        _send_to_all(injector, DrainRequested(record.model, record.pool, record.worker, _BY))
    return no_undo


def announcement_requested(injector: FaultInjector, fault: Fault) -> Undo:
    """Request an announcement of a model's decision."""
    _send_to_all(injector, AnnouncementRequested(pick(sorted(injector.world.models), fault.level)[0], "scaler"))
    return no_undo


def demand(injector: FaultInjector, fault: Fault) -> Undo:
    """Change the demand of one pool."""
    pools = sorted(injector.world.demand)
    place = fault.level * len(pools)
    injector.world.demand[pools[int(place) % len(pools)]] = pick(_DEMANDS, place % 1.0)[0]
    return no_undo


def invalid_messages(injector: FaultInjector, fault: Fault) -> Undo:
    """Publish invalid frames and records, well-formed and malformed."""
    world = injector.world
    for _, worker in pick(sorted(world.workers.items()), fault.level) if world.rogue.connected else ():
        for subject, payload in _false_reports(worker.record):
            world.rogue.publish_now(subject, payload)
        decision = world.scaler_bus.decisions.get(worker.record.model)
        for answer in _false_answers(decision) if decision else ():
            world.rogue.publish_now(_SUBJECTS.applied(answer.model), encode(answer))
        if world.store.available:
            world.store.commit([], list(_strange_records(worker.record)))
    return no_undo


def _false_reports(record: WorkerRecord) -> Iterator[tuple[str, bytes]]:
    """Yield reports of another incarnation, rank, pool or model, and a malformed frame."""
    model, pool, name, incarnation = record.model, record.pool, record.worker, record.incarnation
    subject = _SUBJECTS.load(model, pool, name)
    yield subject, b"{" * 1_000
    yield subject, encode(LoadReport(model, pool, name, incarnation + 1, [_HUGE]))
    yield subject, encode(LoadReport(model, pool, name, 0, [_HUGE]))
    yield subject, encode(LoadReport(model, pool, name, incarnation, [replace(_HUGE, rank=1_000)]))
    yield _SUBJECTS.load(model, "elsewhere", name), encode(LoadReport(model, pool, name, incarnation, [_HUGE]))
    yield _SUBJECTS.load("other", pool, name), encode(LoadReport("other", pool, name, incarnation, [_HUGE]))
    yield _SUBJECTS.drained(model, pool, name), encode(DrainReport(model, pool, name, incarnation + 1, "0"))


def _false_answers(decision: ScalingDecision) -> Iterator[DecisionApplied]:
    """Yield answers to an unknown decision, to another epoch or sequence, and with unknown pools."""
    numbers = decision.decision_id, decision.model, decision.epoch, decision.sequence
    done = DecisionApplied(*numbers, "rogue", "done")
    yield replace(done, decision_id="f" * 16)
    yield replace(done, epoch=decision.epoch + 1, status="refused")
    yield replace(done, sequence=decision.sequence + 1)
    yield replace(done, observed={"elsewhere": 3}, status="progress")


def _strange_records(record: WorkerRecord) -> Iterator[Write]:
    """Yield a worker of the wrong role, a malformed record and a foreign key."""
    yield Write(_KEYS.worker("whole", "both", "strange"), encode(replace(record, worker="strange", role="prefill")))
    yield Write(_KEYS.worker("whole", "both", "garbage"), b"\x00not a record")
    yield Write(f"{_KEYS.prefix}somebody/else", b"1")


def _send_to_all(injector: FaultInjector, event: AnnouncementRequested | DrainRequested | PauseRequested) -> None:
    for _, agent in sorted(injector.world.agents.items()):
        agent.inbox.put(event)
