"""Client of a scaler: an async iterator of current decisions, and the answers to them.

    async with ScalerClient("my-scaler", ["llama"], nats=NatsKnobs()) as scaler:
        async for decision in scaler:
            await scaler.accept(decision, {pool: "unknown" for pool in decision.targets})
            for pool, target in decision.targets.items():
                await set_replicas(pool, target.replicas)
            await scaler.complete(decision, {pool: target.replicas for pool, target in decision.targets.items()})

The rule ``unknown`` is for platforms that select the workers to remove: the agent drains none. With the default,
``named``, remove the victims of each target, and only once they are drained.

Decisions hold absolute counts and are announced again until they are done. A scaler requests the current ones when it
starts, so it may start late and needs no storage.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import takewhile
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from loadline.adapters.logs import bounded
from loadline.client.announcements import request_announcements
from loadline.client.fence import CHALLENGE_S, CountsInForce, DecisionFence, Freshness
from loadline.client.received_decision import ReceivedDecision
from loadline.client.resources import bus_of, publish_now, running, wait_at_most
from loadline.core.vocabulary.decisions import ApplyStatus, VictimRule
from loadline.ports import Bus
from loadline.servers import NatsKnobs
from loadline.wire.codec import Rejected, decode_as, printable
from loadline.wire.messages import DecisionApplied, DrainReport, ScalingDecision
from loadline.wire.subjects import Subjects

CLOCK_SKEW_MAX_MS: Final = 60_000
"""Largest difference between the clocks of a scaler and of workers."""
DRAINED_WORKERS_MAX: Final = 10_000
"""Drained workers that are remembered; the oldest is forgotten first."""
AWAITING_REMOVAL_S: Final = 3.0
"""Time after its last report in which a drained worker awaits its removal. It reports each second while it runs."""
DETAIL_CHARS_MAX: Final = 256
_REFUSALS_WAITING_MAX: Final = 64
_REQUEST_INTERVAL_S: Final = 2.0
_UNANSWERED_MAX: Final = 20
"""Requests without an answer, of 1 to 3 s each, after which the models without a leader are logged."""

VictimRules = Mapping[str, VictimRule]
"""Rules by which a platform selects the workers to remove, by pool."""

_CONFIGURE: Final = "Start their agents, or correct the names: no agent leads these models."
_FIND_PUBLISHER: Final = "No leader made a decision of this number: find out who publishes decisions."

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})

_log = bounded("scaler")


class _LastReport(NamedTuple):
    """Last drain report of a worker."""

    incarnation: int
    at_s: float


class ScalerClient(AsyncIterator[ReceivedDecision]):
    """Receiver of the decisions of some models, as an async context manager and iterator.

    Only the newest decision of a model is yielded. Stale and expired ones are refused, and a repeated one gets the
    previous answer again.

    Args:
        name: Name of this scaler, which its answers carry.
        models: Models whose decisions it applies.
        nats: Servers and login of NATS; by default on this host.
        root: Prefix of every NATS subject.
        bus: A connected bus to use instead of ``nats``; it stays open.
    """

    def __init__(
        self,
        name: str,
        models: Sequence[str],
        *,
        nats: NatsKnobs | None = None,
        root: str = "loadline",
        bus: Bus | None = None,
    ) -> None:
        self.ignored = 0
        """Number of frames that were no valid message."""
        self._name = name
        self._models = tuple(models)
        self._connection = (bus, nats)
        self._subjects = Subjects(root)
        self._fence = DecisionFence()
        self._counts = CountsInForce()
        self._newest: dict[str, ReceivedDecision] = {}
        self._waiting: dict[str, ReceivedDecision] = {}
        self._arrived = asyncio.Event()
        self._answers: dict[str, DecisionApplied] = {}
        self._victims: dict[str, dict[str, VictimRule]] = {}
        self._repeat: dict[str, None] = {}
        self._refusals: deque[DecisionApplied] = deque(maxlen=_REFUSALS_WAITING_MAX)
        self._unsent = asyncio.Event()
        self._challenged = asyncio.Event()
        """Set when a stale decision has come, which the fence may want to have confirmed."""
        self._drained: OrderedDict[tuple[str, str, str], _LastReport] = OrderedDict()
        self._drain_reported = asyncio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Subscribe, without waiting for NATS."""
        bus, nats = self._connection
        async with AsyncExitStack() as stack:
            self._bus = await stack.enter_async_context(bus_of(bus, nats, f"loadline-scaler-{self._name}"))
            await stack.enter_async_context(running(self._send_pending(), f"answers of {self._name}"))
            drained = dict.fromkeys(subject for model in self._models for subject in self._subjects.all_drained(model))
            for subject in drained:
                stack.push_async_callback(await self._bus.subscribe(subject, self._on_drained))
            for model in self._models:
                subscribed = await self._bus.subscribe(self._subjects.decision(model), self._on_decision)
                stack.push_async_callback(subscribed)
            await stack.enter_async_context(running(self._request_decisions(), f"requests of {self._name}"))
            await stack.enter_async_context(running(self._confirm_decisions(), f"confirmations of {self._name}"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Unsubscribe and disconnect."""
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedDecision:
        """Return the newest decision of the model that has waited longest; wait for one if there is none."""
        while True:
            while self._waiting:
                received = self._waiting.pop(next(iter(self._waiting)))
                in_force = self._counts.unknown_to(received.decision)
                if received.expired:
                    await self.refuse(
                        received, "expired before the scaler began: raise decisions.ttl_ms if it is busy for longer"
                    )
                elif in_force:
                    await self._answer(received, "refused", detail=_unknown(in_force), in_force=in_force)
                else:
                    return received
            self._arrived.clear()
            await self._arrived.wait()

    async def accept(self, received: ReceivedDecision, victims: VictimRules | None = None) -> None:
        """Report that a decision will be applied.

        Args:
            received: The decision.
            victims: Rules by which the platform selects the workers to remove, by pool, as for all answers; a pool
                without one has ``named``. None: as in the last answer for the model.
        """
        await self._answer(received, "accepted", victims=victims)

    async def progress(
        self,
        received: ReceivedDecision,
        observed: Mapping[str, int],
        detail: str = "",
        victims: VictimRules | None = None,
    ) -> None:
        """Report progress: the number of existing workers by pool, and the reason why the decision waits."""
        await self._answer(received, "progress", observed, detail, victims)

    async def complete(
        self,
        received: ReceivedDecision,
        observed: Mapping[str, int],
        victims: VictimRules | None = None,
        *,
        detail: str = "",
    ) -> None:
        """Report that a decision is applied, with the number of existing workers by pool.

        Args:
            received: The decision.
            observed: Number of existing workers by pool.
            victims: Rules as of ``accept``.
            detail: Fault of its workers, such as that they crash. Report again whenever it changes.
        """
        await self._answer(received, "done", observed, detail, victims)

    async def refuse(self, received: ReceivedDecision, detail: str, victims: VictimRules | None = None) -> None:
        """Refuse a decision, with the reason."""
        await self._answer(received, "refused", detail=detail, victims=victims)

    def record_existing(self, model: str, pool: str, replicas: int) -> None:
        """Record the replicas that a pool has when this scaler starts, and their changes until the first decision.

        Until it accepts one, it refuses those whose leader does not know of these replicas.
        """
        self._counts.record_existing(model, pool, replicas)

    def drained(self, model: str, pool: str, worker: str, incarnation: int = 0) -> bool:
        """Return True if a worker reported that it is drained, in this incarnation or a later one.

        An incarnation is the start time of a process, so a report of one in the future is ignored.
        """
        reported = self._drained.get((model, pool, worker))
        return reported is not None and reported.incarnation >= incarnation

    def awaiting_removal(self, model: str, pool: str) -> dict[str, int]:
        """Return the drained workers of a pool that wait for their removal, by name, with their incarnations.

        They need not be victims of the current decision: it may have come after their drain. A worker of which no
        report has come for 3 s is left out, since its name may belong to a process by now that serves.
        """
        since_s = asyncio.get_running_loop().time() - AWAITING_REMOVAL_S
        recent = takewhile(lambda entry: entry[1].at_s >= since_s, reversed(self._drained.items()))
        return {key[2]: report.incarnation for key, report in recent if key[:2] == (model, pool)}

    async def wait_drained(self, model: str, pool: str, worker: str, timeout_s: float, incarnation: int = 0) -> bool:
        """Wait at most ``timeout_s`` for the drain report of a worker; return True if it came."""
        deadline_s = time.monotonic() + timeout_s
        while not self.drained(model, pool, worker, incarnation):
            left_s = deadline_s - time.monotonic()
            reported = self._drain_reported
            if left_s <= 0 or not await wait_at_most(reported, left_s):
                return self.drained(model, pool, worker, incarnation)
        return True

    async def _request_decisions(self) -> None:
        """Request the current decisions at the start, until the leaders of all models have answered."""
        missing, unanswered = dict.fromkeys(self._models), 0
        while missing:
            answered = await request_announcements(self._bus, self._subjects, list(missing), self._name)
            for model in answered:
                del missing[model]
            if not answered:
                unanswered += 1
                if unanswered == _UNANSWERED_MAX:
                    _log.warning("models_without_leader", models=list(missing), remedy=_CONFIGURE)
                await asyncio.sleep(_REQUEST_INTERVAL_S)

    async def _confirm_decisions(self) -> None:
        """Request the current decisions of models with stale ones when the fence says so."""
        while True:
            self._challenged.clear()
            await asyncio.gather(*map(self._confirm, self._fence.to_ask(time.monotonic())))
            ask_at_s = self._fence.next_ask_s()
            if ask_at_s is None:
                await self._challenged.wait()
            else:
                await wait_at_most(self._challenged, ask_at_s - time.monotonic())

    async def _confirm(self, model: str) -> None:
        if await request_announcements(self._bus, self._subjects, (model,), self._name):
            self._fence.record_answer(model, time.monotonic())

    async def _answer(
        self,
        received: ReceivedDecision,
        status: ApplyStatus,
        observed: Mapping[str, int] = _NOTHING,
        detail: str = "",
        victims: VictimRules | None = None,
        *,
        in_force: Mapping[str, int] = _NOTHING,
    ) -> None:
        """Publish an answer and keep it for repetitions; drop it if a newer decision was received."""
        decision = received.decision
        if victims is not None:
            self._victims[decision.model] = dict(victims)
        if status != "refused":
            self._counts.accept(decision, self._fence.highest(decision.model))
        if not self._fence.is_newest(decision):
            return
        answer = self._signed(decision, status, observed, detail, in_force)
        self._answers[decision.model] = answer
        await publish_now(self._bus, self._subjects.applied(decision.model), answer)

    def _signed(
        self,
        decision: ScalingDecision,
        status: ApplyStatus,
        observed: Mapping[str, int] = _NOTHING,
        detail: str = "",
        in_force: Mapping[str, int] = _NOTHING,
    ) -> DecisionApplied:
        return DecisionApplied(
            decision_id=decision.decision_id,
            model=decision.model,
            epoch=decision.epoch,
            sequence=decision.sequence,
            scaler=self._name,
            status=status,
            observed=dict(observed),
            detail=printable(detail, DETAIL_CHARS_MAX),
            victims=self._victims.get(decision.model, {}),
            in_force=dict(in_force),
        )

    def _on_decision(self, subject: str, payload: bytes) -> None:
        decision = decode_as(ScalingDecision, payload, subject)
        if isinstance(decision, Rejected):
            self._ignore(subject, decision.detail)
            return
        if self._subjects.decision(decision.model) != subject:
            self._ignore(subject, "it names another model")
            return
        model = decision.model
        highest = self._fence.highest(model)
        match self._fence.classify(decision, time.monotonic()):
            case Freshness.NEW:
                if (decision.epoch, decision.sequence) < highest:
                    epoch, sequence = highest
                    _log.warning("fence_lowered", model=model, epoch=epoch, sequence=sequence, remedy=_FIND_PUBLISHER)
                self._newest[model] = self._waiting[model] = ReceivedDecision(decision)
                self._answers.pop(model, None)
                self._arrived.set()
            case Freshness.REPEATED:
                if model in self._newest:
                    self._newest[model].apply_repetition(decision.ttl_ms)
                self._repeat[model] = None
            case Freshness.EXPIRED:
                self._newest.pop(model, None)
                self._waiting.pop(model, None)
                self._answers[model] = self._signed(
                    decision, "refused", detail="expired when it came: the agent decides again"
                )
                self._repeat[model] = None
            case Freshness.STALE:
                self._challenged.set()
                detail = _stale(subject, *highest)
                self._refusals.append(self._signed(decision, "refused", detail=detail, in_force=self._counts.of(model)))
        self._unsent.set()

    async def _send_pending(self) -> None:
        """Send answers that callbacks cannot await. They are looked up when sent, so none is outdated."""
        while True:
            await self._unsent.wait()
            self._unsent.clear()
            while self._repeat:
                model = next(iter(self._repeat))
                del self._repeat[model]
                if model in self._answers:
                    await publish_now(self._bus, self._subjects.applied(model), self._answers[model])
            while self._refusals:
                refusal = self._refusals.popleft()
                await publish_now(self._bus, self._subjects.applied(refusal.model), refusal)

    def _on_drained(self, subject: str, payload: bytes) -> None:
        report = decode_as(DrainReport, payload, subject)
        if isinstance(report, Rejected) or subject not in self._drained_subjects(report):
            self._ignore(subject, "not a drain report of this worker")
            return
        if report.model not in self._models:
            return
        if report.incarnation > time.time() * 1_000 + CLOCK_SKEW_MAX_MS:
            self._ignore(subject, "an incarnation in the future")
            return
        key = (report.model, report.pool, report.worker)
        known = self._drained.get(key)
        newest = report.incarnation if known is None else max(report.incarnation, known.incarnation)
        self._drained[key] = _LastReport(newest, asyncio.get_running_loop().time())
        self._drained.move_to_end(key)
        if len(self._drained) > DRAINED_WORKERS_MAX:
            self._drained.popitem(last=False)
        # Present waiters hold the old event; later ones wait for the new one.
        reported, self._drain_reported = self._drain_reported, asyncio.Event()
        reported.set()

    def _drained_subjects(self, report: DrainReport) -> tuple[str, str]:
        subjects = self._subjects
        return subjects.drained(report.model, report.pool, report.worker), subjects.by_name("drained", report.worker)

    def _ignore(self, subject: str, detail: str) -> None:
        self.ignored += 1
        _log.warning("frame_ignored", subject=subject, detail=detail)


def _stale(subject: str, epoch: int, sequence: int) -> str:
    return (
        f"stale: epoch {epoch}, sequence {sequence} was seen. A newer one is accepted {CHALLENGE_S:.0f} s after the "
        "first refusal, once a leader has answered. If no agent leads with that epoch, find out who publishes on "
        f"{subject}"
    )


def _unknown(in_force: Mapping[str, int]) -> str:
    counts = ", ".join(f"{pool} {replicas}" for pool, replicas in sorted(in_force.items()))
    return f"made without knowing the counts in force, from which the agent goes on: {counts}"
