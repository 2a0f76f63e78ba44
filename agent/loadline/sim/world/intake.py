"""The requests that a simulated worker takes in: room for them, and whether they are its own."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol

from loadline.client.holds import HeldRequests
from loadline.client.moves import Moves
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.sim.engine import Request, SimulatedEngine
from loadline.sim.world import peers
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.peers import Handover, Room, Said
from loadline.sim.world.tasks import VirtualFuture
from loadline.sim.world.timeline import Timeline


class Host(Protocol):
    """A worker's process, as those that move its requests know it."""

    record: WorkerRecord
    engine: SimulatedEngine
    peers: BusConnection
    """Its connection to other workers and to the frontend."""
    holds: HeldRequests

    @property
    def held(self) -> list[str]:
        """Ids of all requests that are its own, or may be."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it may be given a request."""
        ...

    def run(self, request: Request) -> None:
        """Have it run a request that it holds."""
        ...

    def advance(self) -> None:
        """Have it look at its engine."""
        ...


class Intake:
    """The destination's side of moves, for one life of a worker.

    Args:
        timeline: Virtual time.
        host: The worker's process.
        moves: Counts who comes.
        begin: Does something until the process ends.
    """

    def __init__(
        self,
        timeline: Timeline,
        host: Host,
        moves: Moves,
        begin: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self.refuses = False
        """It has no room for anybody."""
        self._timeline = timeline
        self._host = host
        self._moves = moves
        self._begin = begin
        self._arrivals: dict[tuple[str, int], VirtualFuture[bool]] = {}
        """Requests and hops in doubt; each comes to whether it is run."""

    async def listen(self) -> None:
        """Answer those that ask for room, and take in what is handed over."""
        port, worker = self._host.peers, self._host.record.worker
        await port.answer(peers.room_at(worker), peers.answering(Room, self._answer_room))
        await port.answer(peers.handover_to(worker), peers.answering(Handover, self._answer_handover))

    async def _answer_room(self, room: Room) -> Said | None:
        if room.incarnation != self._host.record.incarnation:
            return None
        if room.ttl_ms <= 0:
            self._settle(room.request_id)
            return Said(yes=False)
        yes = not self.refuses and self._host.serving and self._host.engine.fits(room.kv_tokens, room.kv_tokens_max)
        yes = yes and self._moves.admit(room.request_id)
        if yes:
            self._timeline.call_later(room.ttl_ms + peers.TIMEOUT_S * 1_000.0, partial(self._settle, room.request_id))
        return Said(yes)

    def _settle(self, request_id: str) -> None:
        if all(name != request_id for name, _ in self._arrivals):
            self._moves.settle(request_id)

    async def _answer_handover(self, handover: Handover) -> Said | None:
        """Take it in, if the frontend says so; the same handover again has the same answer."""
        host, request = self._host, handover.request
        name, hop = request.request_id, request.hop
        if handover.incarnation != host.record.incarnation:
            return None
        if host.holds.hop(name) == hop:
            return Said(yes=True)
        if not (self._moves.admit(name) and host.holds.expect(name, hop)):
            self._settle(name)
            return Said(yes=False)
        arrival = self._arrivals.get((name, hop))
        if arrival is None:
            arrival = self._arrivals[name, hop] = VirtualFuture[bool]()
            self._begin(self._find_out(request, arrival))
        return Said(await arrival)

    async def _find_out(self, request: Request, arrival: VirtualFuture[bool]) -> None:
        """Whether it is this worker's own; if so it is run."""
        host, name, hop = self._host, request.request_id, request.hop
        host.engine.abort(name, self._timeline.now_ms)  # it may run it under an earlier hop, which is over
        owned = await peers.claim(self._timeline, host.peers, host.record, name, hop)
        del self._arrivals[name, hop]
        self._settle(name)
        runs = host.holds.answered(name, hop, taken=owned.yes) == "run"
        if runs:
            host.run(request)
        arrival.set_result(runs)
        host.advance()
