"""A scaler's side: an async iterator of decisions that are still true, and the answers to them.

    async with ScalerClient("my-scaler", ["llama"], nats=NatsKnobs()) as scaler:
        async for order in scaler:
            await scaler.accept(order)
            for pool, target in order.targets.items():
                await set_replicas(pool, target.replicas)
            await scaler.complete(order, observed={pool: target.replicas for pool, target in order.targets.items()})

Decisions hold absolute counts and are announced again until they are done, and a scaler that starts asks for what
stands: it may start late, and keeps nothing.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, Self

from loadline.adapters.logs import bounded
from loadline.client.fence import DecisionFence, Freshness
from loadline.client.resources import bus_of, publish_now, running, wait_at_most
from loadline.config import NatsKnobs
from loadline.core.vocabulary.decisions import ApplyStatus, PoolTarget
from loadline.errors import BusUnavailable
from loadline.ports import Bus
from loadline.wire.codec import Rejected, decode_as, encode, printable
from loadline.wire.messages import AnnounceRequest, DecisionApplied, DrainReport, OperatorReply, ScalingDecision
from loadline.wire.subjects import Subjects

DRAINED_WORKERS_MAX: Final = 10_000
"""Drained workers that are remembered; the oldest is forgotten first."""
DETAIL_CHARS_MAX: Final = 256
_REFUSALS_WAITING_MAX: Final = 64
_ASK_TIMEOUT_S: Final = 1.0
_ASK_AGAIN_S: Final = 2.0

_log = bounded("scaler")


class ReceivedDecision:
    """A decision as this scaler received it, with deadlines on its own monotonic clock."""

    def __init__(self, decision: ScalingDecision) -> None:
        self.decision = decision
        self.targets: dict[str, PoolTarget] = {target.pool: target for target in decision.targets}
        """What each pool should be, by its name."""
        self._received_s = time.monotonic()
        self._expires_s = self._received_s + decision.ttl_ms / 1_000

    @property
    def model(self) -> str:
        """Whose pools these are."""
        return self.decision.model

    def announced_again(self, ttl_ms: int) -> None:
        """A repetition may bring the expiry nearer, never further away."""
        self._expires_s = min(self._expires_s, time.monotonic() + ttl_ms / 1_000)

    @property
    def expired(self) -> bool:
        """Too late to begin with it."""
        return time.monotonic() >= self._expires_s

    @property
    def drain_expired(self) -> bool:
        """Its victims had ``drain_ttl_ms``: they may be deleted whether or not they are drained."""
        return time.monotonic() >= self._received_s + self.decision.drain_ttl_ms / 1_000


class ScalerClient(AsyncIterator[ReceivedDecision]):
    """Receives the decisions of some models, as an async context manager and iterator.

    Of each model only the newest decision waits. One that is older than what was seen, or expired, is refused; one that
    came again is answered as before; none of these is handed out.

    Args:
        name: This scaler's name; it signs the answers.
        models: The models whose decisions it carries out.
        nats: Where NATS is; the default is this host.
        root: First tokens of every subject.
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
        """Frames that were no message of ours."""
        self._name = name
        self._models = tuple(models)
        self._given = (bus, nats)
        self._subjects = Subjects(root)
        self._fence = DecisionFence()
        self._newest: dict[str, ReceivedDecision] = {}
        self._waiting: dict[str, ReceivedDecision] = {}
        self._arrived = asyncio.Event()
        self._answers: dict[str, DecisionApplied] = {}
        self._repeat: dict[str, None] = {}
        self._refusals: deque[DecisionApplied] = deque(maxlen=_REFUSALS_WAITING_MAX)
        self._unsent = asyncio.Event()
        self._drained: OrderedDict[str, int] = OrderedDict()
        self._drain_news = asyncio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Begin to listen; does not wait for NATS to be there."""
        bus, nats = self._given
        async with AsyncExitStack() as stack:
            self._bus = await stack.enter_async_context(bus_of(bus, nats, f"loadline-scaler-{self._name}"))
            await stack.enter_async_context(running(self._send_on(), f"answers of {self._name}"))
            await self._bus.subscribe(self._subjects.all_of("drained"), self._on_drained)
            for model in self._models:
                await self._bus.subscribe(self._subjects.decision(model), self._on_decision)
            await stack.enter_async_context(running(self._ask_what_stands(), f"first question of {self._name}"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening and disconnect."""
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedDecision:
        """The newest decision of the model that has waited longest; waits for one, without end."""
        while True:
            while self._waiting:
                order = self._waiting.pop(next(iter(self._waiting)))
                if not order.expired:
                    return order
                await self.refuse(order, "expired before it could be begun")
            self._arrived.clear()
            await self._arrived.wait()

    async def accept(self, order: ReceivedDecision) -> None:
        """Say that it will be carried out."""
        await self._answer(order, "accepted", {}, "")

    async def progress(self, order: ReceivedDecision, observed: Mapping[str, int]) -> None:
        """Say how many workers there are now, by pool."""
        await self._answer(order, "progress", observed, "")

    async def complete(self, order: ReceivedDecision, observed: Mapping[str, int]) -> None:
        """Say that it is carried out, with the workers that there are now, by pool."""
        await self._answer(order, "done", observed, "")

    async def refuse(self, order: ReceivedDecision, detail: str) -> None:
        """Say that it will not be carried out, and why."""
        await self._answer(order, "refused", {}, detail)

    def drained(self, worker: str, incarnation: int = 0) -> bool:
        """Whether a worker said that it is empty; in this incarnation or a later one, where names are used again."""
        said = self._drained.get(worker)
        return said is not None and said >= incarnation

    async def wait_drained(self, worker: str, timeout_s: float, incarnation: int = 0) -> bool:
        """Wait until a worker said that it is empty, ``timeout_s`` at most; says whether it did."""
        deadline_s = time.monotonic() + timeout_s
        while not self.drained(worker, incarnation):
            left_s = deadline_s - time.monotonic()
            news = self._drain_news
            if left_s <= 0 or not await wait_at_most(news, left_s):
                return self.drained(worker, incarnation)
        return True

    async def _ask_what_stands(self) -> None:
        """What was carried out is not announced any more: ask for it, until the leader answers."""
        request = encode(AnnounceRequest(self._models, self._name))
        while True:
            with contextlib.suppress(BusUnavailable):
                payload = await self._bus.request(self._subjects.api("announce"), request, _ASK_TIMEOUT_S)
                reply = decode_as(OperatorReply, payload)
                if not isinstance(reply, Rejected) and reply.accepted:
                    return
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _answer(
        self, order: ReceivedDecision, status: ApplyStatus, observed: Mapping[str, int], detail: str
    ) -> None:
        """Publish an answer and keep it for repetitions; dropped when a newer decision has made it pointless."""
        decision = order.decision
        if not self._fence.is_newest(decision):
            return
        answer = self._signed(decision, status, observed, detail)
        self._answers[decision.model] = answer
        await publish_now(self._bus, self._subjects.applied(decision.model), answer)

    def _signed(
        self, decision: ScalingDecision, status: ApplyStatus, observed: Mapping[str, int], detail: str
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
        match self._fence.judge(decision):
            case Freshness.NEW:
                self._newest[model] = self._waiting[model] = ReceivedDecision(decision)
                self._answers.pop(model, None)
                self._arrived.set()
            case Freshness.REPEATED:
                if model in self._newest:
                    self._newest[model].announced_again(decision.ttl_ms)
                self._repeat[model] = None
            case Freshness.EXPIRED:
                self._newest.pop(model, None)
                self._waiting.pop(model, None)
                self._answers[model] = self._signed(decision, "refused", {}, "expired")
                self._repeat[model] = None
            case Freshness.STALE:
                epoch, sequence = self._fence.highest(model)
                detail = f"stale: epoch {epoch}, sequence {sequence} was seen"
                self._refusals.append(self._signed(decision, "refused", {}, detail))
        self._unsent.set()

    async def _send_on(self) -> None:
        """Send what a callback may not wait for. An answer is looked up when it is sent, so it is never an old one."""
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
        if isinstance(report, Rejected) or self._subjects.drained(report.worker) != subject:
            self._ignore(subject, "not a drain report of this worker")
            return
        if report.model not in self._models:
            return
        self._drained[report.worker] = max(report.incarnation, self._drained.get(report.worker, 0))
        self._drained.move_to_end(report.worker)
        if len(self._drained) > DRAINED_WORKERS_MAX:
            self._drained.popitem(last=False)
        # A fresh event for whoever waits from now on; those who wait already hold the old one.
        news, self._drain_news = self._drain_news, asyncio.Event()
        news.set()

    def _ignore(self, subject: str, detail: str) -> None:
        self.ignored += 1
        _log.warning("frame_ignored", subject=subject, detail=detail)
