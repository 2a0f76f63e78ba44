"""How a demo worker gives requests away and takes them in. The gateway says whose they are: see ``client.ownership``.

KV cache goes over a link in virtual time. What is said goes over NATS in real time: a hand-over stalls its request by
that, and by a tick of the engine.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from loadline.adapters.nats_bus import NatsBus
from loadline.client.mover import MoveRefused
from loadline.client.worker import WorkerClient
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.demo.engine_host import EngineHost, Stopped
from loadline.demo.protocol import (
    Claim,
    Offer,
    Owned,
    Room,
    Said,
    Submission,
    VirtualClock,
    claim_subject,
    offer_subject,
    pack,
    room_subject,
    unpack,
)
from loadline.errors import BusUnavailable
from loadline.sim.serving.transfer import TransferLink
from loadline.wire.messages import MigrateCommand

_ANSWER_S: Final = 1.0
# A destination asks its gateway once before it answers, so it answers later than a gateway does.
_HANDED_OVER_S: Final = 2.0 * _ANSWER_S
_CLAIM_AGAIN_S: Final = 0.1
# A gateway that does not answer a claim for so long is gone, and so are its users.
_GONE_S: Final = 30.0
# Requests that a gateway says nobody owns are over.
_NOBODYS: Final = Owned(taken=False)
_M = TypeVar("_M", bound=Struct)


class Porter:
    """Moves requests of a host to others, and takes theirs in; an async context manager.

    Args:
        host: Whose requests.
        record: What the worker is.
        clock: The virtual time that all share.
        bus: A connected bus.
        root: First tokens of every subject.
        link: The way to other workers.
    """

    def __init__(
        self,
        host: EngineHost,
        record: WorkerRecord,
        clock: VirtualClock,
        bus: NatsBus,
        root: str,
        *,
        link: TransferLink,
    ) -> None:
        self._station = host
        self._record = record
        self._clock = clock
        self._bus = bus
        self._root = root
        self._link = link
        self._downtimes_ms: dict[str, float] = {}
        self._rooms: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        """Blocks that are kept free for requests that are to come, and when they are free again."""
        self._claims: set[asyncio.Task[None]] = set()
        self._worker: WorkerClient | None = None

    async def serve(self, worker: WorkerClient) -> None:
        """Take requests in from now on, as many as that worker has slots for."""
        self._worker = worker
        await self._bus.answer(room_subject(self._root, self._record.worker), self._answer_room)
        await self._bus.answer(offer_subject(self._root, self._record.worker), self._answer_offer)

    async def __aenter__(self) -> Self:
        """Nothing begins by itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Claim nothing more: the process leaves."""
        for task in self._claims:
            task.cancel()
        await asyncio.gather(*self._claims, return_exceptions=True)

    # -- as a source ---------------------------------------------------------------------------------------------------

    def select(self, _command: MigrateCommand) -> Sequence[MigratableRequest]:
        """What the engine has, but for what is on its way already."""
        holds = self._station.holds
        return [one for one in self._station.engine.migratable_requests() if holds.hop(one.request_id) is not None]

    async def copy(self, request_id: str, command: MigrateCommand, admitted: Callable[[], None]) -> None:
        """Copy all but the last part of the cache, in virtual time, while the request goes on."""
        engine, its = self._station.engine, command.destination
        room = Room(request_id, its.incarnation, engine.kv_tokens(request_id), command.ttl_ms)
        said = await self._ask(room_subject(self._root, its.worker), room, Said)
        if said is None:
            raise MoveRefused("destination_lost", f"{its.worker} does not answer")
        if not said.yes:
            raise MoveRefused("destination_refused", f"{its.worker} has no room")
        admitted()
        itl_ms = engine.load().itl_ms
        copy = self._link.live_copy(engine.kv_tokens(request_id), 1.0 / itl_ms if itl_ms else 0.0)
        self._downtimes_ms[request_id] = copy.downtime_ms
        try:
            await asyncio.sleep(copy.copying_ms / 1_000 / self._clock.speed)
        except asyncio.CancelledError:
            await self._forgo(request_id, command)
            raise

    async def switch(self, request_id: str, command: MigrateCommand) -> bool:
        """Stop it, hand it over, and find out who owns it, however long that takes."""
        downtime_ms = self._downtimes_ms.pop(request_id, 0.0)
        stopped = await self._station.stop(request_id)
        hop = None if stopped is None else self._station.holds.hand_over(request_id)
        if stopped is None or hop is None:
            await self._forgo(request_id, command)
            raise MoveRefused("finished", "it ended, or is about to")
        request = replace(stopped.request, hop=hop)
        moved = Submission(replace(request, migrations=request.migrations + 1), stopped.at_ms + downtime_ms)
        offer = Offer(stopped.gateway, command.destination.incarnation, moved)
        said = await self._ask(offer_subject(self._root, command.destination.worker), offer, Said, _HANDED_OVER_S)
        if said is not None and said.yes:
            if self._station.holds.answered(request_id, hop, taken=False) == "drop":
                self._station.forget(request_id)
            return True
        return await self._find_out(replace(stopped, request=request), command)

    async def _find_out(self, stopped: Stopped, command: MigrateCommand) -> bool:
        """Claim it for ourselves: whether the destination has it after all."""
        request, its = stopped.request, command.destination
        owned = await self._claim(stopped.gateway, request.request_id, request.hop)
        act = self._station.holds.answered(request.request_id, request.hop, taken=owned.taken)
        if act == "run":
            self._station.go_on(Submission(request, stopped.at_ms))
            return False
        if act == "drop":  # else it has come back meanwhile, under a later hop
            self._station.forget(request.request_id)
        if (owned.worker, owned.incarnation) != (its.worker, its.incarnation):
            raise MoveRefused("withdrawn", "its gateway has taken it back")
        return True

    async def _forgo(self, request_id: str, command: MigrateCommand) -> None:
        """Let the destination have its room back at once. If it does not hear of that, it has it back in time."""
        self._downtimes_ms.pop(request_id, None)
        its = command.destination
        await self._ask(room_subject(self._root, its.worker), Room(request_id, its.incarnation, 0, 0), Said)

    # -- as a destination ----------------------------------------------------------------------------------------------

    async def _answer_room(self, payload: bytes) -> bytes | None:
        room = unpack(Room, payload)
        if room is None or self._worker is None:
            return None
        self._settle(room.request_id)
        blocks = self._station.engine.knobs.blocks(room.tokens)
        wanted = room.ttl_ms > 0 and room.incarnation == self._record.incarnation
        if not (wanted and blocks <= self._free_blocks() and self._worker.admit(room.request_id)):
            return pack(Said(yes=False))
        # A source that dies says nothing more.
        timer = asyncio.get_running_loop().call_later(room.ttl_ms / 1_000, self._settle, room.request_id)
        self._rooms[room.request_id] = (blocks, timer)
        self._station.expected.add(room.request_id)
        return pack(Said(yes=True))

    def _free_blocks(self) -> int:
        load, knobs = self._station.engine.load(), self._station.engine.knobs
        kept = sum(blocks for blocks, _ in self._rooms.values())
        waiting = knobs.blocks(load.waiting_to_decode_tokens or 0)
        return knobs.kv_blocks_total - (load.kv_blocks_used or 0) - waiting - kept

    def _settle(self, request_id: str) -> None:
        """It has come, or never will."""
        _, timer = self._rooms.pop(request_id, (0, None))
        if timer is not None:
            timer.cancel()
        self._station.expected.discard(request_id)
        if self._worker is not None:
            self._worker.settle(request_id)

    async def _answer_offer(self, payload: bytes) -> bytes | None:
        """Whether the request is ours now. A gateway that does not say so at once is asked on in the background."""
        offer = unpack(Offer, payload)
        if offer is None:
            return None
        if offer.incarnation != self._record.incarnation:
            return pack(Said(yes=False))
        request, holds = offer.submission.request, self._station.holds
        if self._station.expect(request, offer.gateway):
            owned = await self._claim_once(offer.gateway, request.request_id, request.hop)
            if owned is not None:
                self._decide(offer, owned)
            else:
                task = asyncio.create_task(self._claim_on(offer))
                self._claims.add(task)
                task.add_done_callback(self._claims.discard)
        self._settle(request.request_id)
        return pack(Said(yes=holds.hop(request.request_id) == request.hop))

    async def _claim_on(self, offer: Offer) -> None:
        request = offer.submission.request
        self._decide(offer, await self._claim(offer.gateway, request.request_id, request.hop))

    def _decide(self, offer: Offer, owned: Owned) -> None:
        request = offer.submission.request
        act = self._station.holds.answered(request.request_id, request.hop, taken=owned.taken)
        if act == "run":
            self._station.go_on(offer.submission)
        elif act == "drop":
            self._station.forget(request.request_id)

    # -- claims --------------------------------------------------------------------------------------------------------

    async def _claim(self, gateway: str, request_id: str, hop: int) -> Owned:
        """What the gateway says of a claim of ours, however long that takes; nobody owns it where it is gone."""
        until_s = time.monotonic() + _GONE_S
        while (owned := await self._claim_once(gateway, request_id, hop)) is None:
            if time.monotonic() > until_s:
                return _NOBODYS
            await asyncio.sleep(_CLAIM_AGAIN_S)
        return owned

    async def _claim_once(self, gateway: str, request_id: str, hop: int) -> Owned | None:
        claim = Claim(request_id, self._record.worker, self._record.incarnation, hop)
        return await self._ask(claim_subject(self._root, gateway), claim, Owned)

    async def _ask(self, subject: str, what: Struct, kind: type[_M], timeout_s: float = _ANSWER_S) -> _M | None:
        """What is answered; None where nothing is."""
        try:
            return unpack(kind, await self._bus.request(subject, pack(what), timeout_s))
        except BusUnavailable:
            return None
