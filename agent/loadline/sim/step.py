"""The agent as a function of time for other simulators: it gets events up to a time and returns its actions.

It is the production agent with its codec, registry, controller and effects, on a bus and a store without delay.
Between two steps it acts at its own times, as in production: it renews its lease, samples, plans and decides.
"""

from collections.abc import Coroutine
from typing import Final

import msgspec
from msgspec import Raw

from loadline.core.controller import Controller
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import AnyEffect, RaiseAlarm
from loadline.core.vocabulary.events import BusConnectionChanged, StoreConnectionChanged
from loadline.core.vocabulary.reasons import Explanation
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import DataError
from loadline.ports import Write
from loadline.runtime.inbox import Inbox
from loadline.runtime.registry import RegistryTranslator
from loadline.runtime.turns import Turns
from loadline.sim.world.agent import BATCH_MAX, FRAME_BYTES_MAX, NullLog
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.fitter import InlineFitter
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.tasks import VirtualTask
from loadline.sim.world.timeline import Timeline
from loadline.wire.codec import Rejected, decode_as, encode, reject
from loadline.wire.keys import Keys
from loadline.wire.messages import (
    DecisionApplied,
    DrainCommand,
    DrainReply,
    MigrateCommand,
    MigrateReply,
    ScalingDecision,
)
from loadline.wire.steps import ITEMS_MAX, Alarm, Hold, HoldReason, StepInput, StepItem, StepOutput
from loadline.wire.subjects import Subjects

JUMP_MAX_MS: Final = 86_400_000
"""The agent evaluates each model every second: a day of ten models takes 12 s, a year an hour."""
# A step has at most 65,536 frames, which is 128 turns; their effects take some more.
_TURNS_MAX: Final = 1_000


class Stepper:
    """An agent in the caller's time. It must not be used after an error.

    Args:
        settings: Settings of its controller.
        root: First tokens of all subjects.
        frame_bytes_max: Limit of a frame's size; larger ones are rejected.
    """

    def __init__(self, settings: Settings, *, root: str = "loadline", frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.controller = Controller(settings)
        self._output = StepOutput()
        self._now_ms: int | None = None
        self._registered: dict[str, str] = {}
        """Worker -> its key."""
        self._announced: dict[str, str] = {}
        """Model -> last returned decision."""
        self._last_holds: dict[str, Explanation] = {}
        self._last_rejections: dict[str, int] = {}
        self._timeline = Timeline()
        self._bus, self._store = (
            VirtualBus(self._timeline, latency_ms=0.0),
            VirtualStore(self._timeline, latency_ms=0.0),
        )
        self._subjects, self._keys = Subjects(root), Keys("step")
        self._inbox = Inbox(ITEMS_MAX, lambda: None, self._subjects)
        port, store = self._bus.connection(), self._store.connection()
        self._turns = Turns(
            controller=self.controller,
            bus=port,
            store=store,
            fitter=InlineFitter(),
            journal=None,
            subjects=self._subjects,
            keys=self._keys,
            inbox=self._inbox,
            spawn=self._perform,
            log=NullLog(),
            batch_max=BATCH_MAX,
            frame_bytes_max=frame_bytes_max,
            version="step",
            on_rejected=self._reject,
        )
        self._caller = self._bus.connection()
        self._bus.subscribe(self._caller, self._subjects.all_of("decision"), self._on_decision)
        registry = RegistryTranslator(self._keys, settings.scope, self._inbox.put, self._reject)
        self._following = VirtualTask(
            store.follow(
                self._keys.prefix,
                registry.on_snapshot,
                registry.on_changes,
                lambda connected: self._inbox.put(StoreConnectionChanged(connected)),
            )
        )
        self._inbox.put(BusConnectionChanged(connected=True))

    def step(self, given: StepInput) -> StepOutput:
        """Advance to ``now_ms``, ingest the items and act on them.

        Raises:
            DataError: Time goes back or jumps by more than a day, an item has none of the three forms, or a worker's
                name is taken.
        """
        answer = self._output = StepOutput()
        self._advance_to(given.now_ms)
        for number, item in enumerate(given.frames):
            self._ingest(item, f"frames[{number}]")
        self._run_turns(given.now_ms)
        answer.holds += self._new_holds()
        answer.rejected += self._new_rejections()
        answer.next_wake_ms = self.controller.next_wake()
        return answer

    # -- time ----------------------------------------------------------------------------------------------------------

    def _advance_to(self, now_ms: int) -> None:
        """Run the turns that are due before ``now_ms``."""
        before_ms = self._now_ms
        if before_ms is None:
            return
        if now_ms < before_ms:
            raise DataError(f"now_ms goes back from {before_ms} to {now_ms}. Give steps in the order of their times")
        if now_ms - before_ms > JUMP_MAX_MS:
            raise DataError(f"now_ms jumps from {before_ms} to {now_ms}. Go on by at most {JUMP_MAX_MS} ms in a step")
        while (wake_ms := self.controller.next_wake()) is not None and wake_ms < now_ms:
            before_ms = max(wake_ms, before_ms + 1)
            if before_ms == now_ms:
                return
            self._run_turns(before_ms)

    def _run_turns(self, now_ms: int) -> None:
        """Run turns until nothing is due at this time."""
        self._now_ms = now_ms
        self._timeline.run_until(now_ms)
        for _ in range(_TURNS_MAX):
            self._turns.turn(now_ms)
            wake_ms = self.controller.next_wake()
            if not self._inbox and (wake_ms is None or wake_ms > now_ms):
                return

    # -- input ---------------------------------------------------------------------------------------------------------

    def _ingest(self, item: StepItem, place: str) -> None:
        match item.subject, item.payload, item.record, item.gone:
            case str(subject), Raw() as payload, msgspec.UNSET, msgspec.UNSET:
                self._inbox.offer(subject, bytes(payload))
            case msgspec.UNSET, msgspec.UNSET, Raw() as record, msgspec.UNSET:
                self._register(bytes(record), place)
            case msgspec.UNSET, msgspec.UNSET, msgspec.UNSET, str(worker):
                self._deregister(worker)
            case _:
                forms = '{"subject": ..., "payload": {...}}, {"record": {...}} or {"gone": "WORKER"}'
                raise DataError(f"{place} is neither a frame nor a record nor a worker that is gone. Write {forms}")

    def _register(self, value: bytes, place: str) -> None:
        record = decode_as(WorkerRecord, value, place)
        if isinstance(record, Rejected):
            self._reject(record)
            return
        key = self._keys.worker(record.model, record.pool, record.worker)
        known = self._registered.setdefault(record.worker, key)
        if known != key:
            _, model, pool, _ = self._keys.split(known)
            text = f"{place} registers {record.worker!r}, which is there in pool {pool!r} of model {model!r}"
            raise DataError(f"{text}. Give every worker a name of its own")
        self._bus.answer(self._caller, self._subjects.drain(*record.names), self._accept_drain)
        self._bus.answer(self._caller, self._subjects.migrate(*record.names), self._accept_migrate)
        self._store.commit([], [Write(key, value)])

    def _deregister(self, worker: str) -> None:
        key = self._registered.pop(worker, None)
        if key is None:
            self._reject(reject(Rejection.UNKNOWN_WORKER, worker, "no worker of this name has a record"))
        else:
            self._store.commit([], [Write(key, None)])

    # -- output --------------------------------------------------------------------------------------------------------

    def _perform(self, effect: AnyEffect, coroutine: Coroutine[object, object, None]) -> None:
        if isinstance(effect, RaiseAlarm):
            self._output.alarms.append(Alarm(effect.kind, effect.model, effect.text))
        VirtualTask(coroutine)

    def _on_decision(self, _subject: str, payload: bytes) -> None:
        decision = msgspec.json.decode(payload, type=ScalingDecision)
        if self._announced.get(decision.model) != decision.decision_id:
            self._announced[decision.model] = decision.decision_id
            self._output.decisions.append(decision)
        if decision.model not in self.controller.state.ledger.pending():  # no other decision is about to replace it
            numbers = decision.decision_id, decision.model, decision.epoch, decision.sequence
            accepted = DecisionApplied(*numbers, scaler="step", status="accepted")
            self._inbox.offer(self._subjects.applied(decision.model), encode(accepted))

    async def _accept_drain(self, payload: bytes) -> bytes:
        command = msgspec.json.decode(payload, type=DrainCommand)
        self._output.drains.append(command)
        return encode(DrainReply(command.drain_id, accepted=True))

    async def _accept_migrate(self, payload: bytes) -> bytes:
        command = msgspec.json.decode(payload, type=MigrateCommand)
        self._output.migrations.append(command)
        # The simulator reads the command later: until its first report the planned amounts count as in flight.
        planned = self.controller.state.migration.in_flight.open[command.command_id]
        return encode(MigrateReply(command.command_id, accepted=True, requests=planned.requests, tokens=planned.tokens))

    def _reject(self, rejected: Rejected) -> None:
        self._output.rejected.append(rejected)

    def _new_holds(self) -> list[Hold]:
        """Return the newest hold of each model since the last step; every evaluation has a new explanation."""
        models = self.controller.state.fleet.models
        names = dict.fromkeys([*self._last_holds, *sorted(models)])  # models that were held first come first
        holds = {name: models[name].hold for name in names if name in models}
        fresh = [hold for name, hold in holds.items() if hold is not None and hold is not self._last_holds.get(name)]
        self._last_holds = {name: hold for name, hold in holds.items() if hold is not None}
        return [_hold(hold) for hold in fresh]

    def _new_rejections(self) -> list[Rejected]:
        """Return the rejections by the core, which counts well-formed but refused input by reason."""
        counts, before = self.controller.state.rejected, self._last_rejections
        self._last_rejections = dict(counts)
        fresh = {why: count - before.get(why, 0) for why, count in counts.items() if count != before.get(why, 0)}
        return [
            reject(Rejection(why), "", f"not believed, {count} since the last step") for why, count in fresh.items()
        ]


def _hold(found: Explanation) -> Hold:
    all_reasons = [*found.limits, *(reason for one in found.recommendations for reason in one.reasons)]
    reasons = [HoldReason(reason.code, reason.sentence(), reason.pool) for reason in all_reasons]
    return Hold(found.model, found.at_ms, found.targets, reasons)
