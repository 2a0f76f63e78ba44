"""The frontend of a simulation: takes requests, gives them to workers and tells the agent what it sees.

Every request is at one place at a time: waiting here, at one worker, or on its way between two. One whose worker is
lost begins again from its prompt.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from loadline.client.interval import Interval
from loadline.core.scalars import Role
from loadline.errors import BusUnavailable
from loadline.sim.bus import BusPort
from loadline.sim.engine import EngineEvent, Request
from loadline.sim.fleet import FleetKnobs, PoolFleet
from loadline.sim.prefix import PrefixCache
from loadline.sim.routing import POLICIES, Station
from loadline.sim.served import Served
from loadline.sim.timeline import START_MS, Timeline
from loadline.sim.traces import Arrival
from loadline.sim.transfer import Link
from loadline.sim.worker import WorkerProcess
from loadline.wire.codec import encode
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects

REPORT_INTERVAL_MS = 1_000.0


class Gateway:
    """One frontend for one model.

    Args:
        timeline: Virtual time.
        model: The model that it serves.
        pools: The model's pools.
        fleet: How requests are routed and moved, and the objectives.
        bus: Its connection to the bus.
        served: The account.
        prefix_block_tokens: Tokens of one prefix block of the trace.
        root: First tokens of all subjects.
    """

    def __init__(
        self,
        timeline: Timeline,
        model: str,
        pools: Mapping[str, PoolFleet],
        fleet: FleetKnobs,
        bus: BusPort,
        *,
        served: Served,
        prefix_block_tokens: int,
        root: str = "loadline",
    ) -> None:
        self.served = served
        self._block_tokens = prefix_block_tokens
        self._timeline = timeline
        self._model = model
        self._pools = pools
        self._fleet = fleet
        self._bus = bus
        self._policy = POLICIES[fleet.routing]
        self._luck = timeline.luck("prefix")
        transfer = fleet.transfer
        self._link = Link(transfer.bandwidth_gbytes_per_s, transfer.latency_ms, transfer.kv_bytes_per_token)
        roles: list[Role] = [pool.role for pool in pools.values()]
        self._entry: Role = "prefill" if "prefill" in roles else "aggregated"
        self._second: Role = "decode" if "prefill" in roles else "aggregated"
        self._stations: dict[str, Station] = {}
        self._serving: dict[Role, list[Station]] = {role: [] for role in ("prefill", "decode", "aggregated")}
        self._chosen: dict[Role, int] = dict.fromkeys(self._serving, 0)
        self._waiting: dict[Role, deque[int]] = {role: deque() for role in self._serving}
        self._arrivals: dict[int, Arrival] = {}
        self._first_token_ms: dict[int, float] = {}
        self._moving = 0
        self._leaving: dict[str, Callable[[int], None]] = {}  # taken out of an engine that still has its last token
        self._attempts = 0
        self._interval = Interval()
        self._sequence = 0
        self._subject = Subjects(root).traffic(model, "gateway")
        timeline.after(REPORT_INTERVAL_MS, self._report)

    @property
    def queued(self) -> int:
        """Requests that wait here for a worker."""
        return sum(map(len, self._waiting.values()))

    @property
    def in_flight(self) -> int:
        """Requests that workers hold, or that are on their way between two."""
        return sum(len(station.numbers) for station in self._stations.values()) + self._moving

    def arrive(self, arrival: Arrival) -> None:
        """A new request, now."""
        number = self.served.arrive(self._timeline.now_ms, arrival.isl_tokens)
        self._arrivals[number] = arrival
        self._interval.arrived(arrival.isl_tokens)
        self._waiting[self._entry].append(number)
        self._assign(self._entry)

    def changed(self, worker: WorkerProcess) -> None:
        """A worker came, began to drain or ended."""
        name = worker.record.worker
        station = self._stations.get(name)
        if station is None:
            blocks = self._pools[worker.record.pool].knobs.prefix_cache_blocks
            station = Station(worker, name, PrefixCache(blocks, self._block_tokens) if blocks else None)
            self._stations[name] = station
        role = worker.record.role
        self._serving[role] = [
            one for one in self._stations.values() if one.worker.record.role == role and one.worker.serving
        ]
        if not worker.alive:
            del self._stations[name]
            self._lose(station)
        elif worker.draining and self._fleet.drain == "migrate":
            self._empty(station)
        self._assign(role)

    def happened(self, worker: WorkerProcess, event: EngineEvent) -> None:
        """Something happened to a request at a worker."""
        station = self._stations[worker.record.worker]
        number = station.numbers.get(event.request_id)
        if number is None:
            return  # it was moved away
        if event.kind == "preempted":
            self.served.preempted += 1
        elif event.kind == "taken":
            del station.numbers[event.request_id]
            self._leaving.pop(event.request_id)(number)
        elif event.kind == "first_token":
            # The user's first token stays the first one: what is computed again after a loss delays those that follow.
            self._first_token_ms.setdefault(number, event.at_ms)
            station.prompt_tokens -= self._arrivals[number].isl_tokens
            if worker.record.role == "prefill":
                del station.numbers[event.request_id]
                self._hand_over(number, event.at_ms)
        else:
            del station.numbers[event.request_id]
            if event.kind == "finished":
                self._finish(number, event.at_ms)
            else:
                station.prompt_tokens -= self._arrivals[number].isl_tokens
                self._end(number)
                self.served.refuse(number)

    # -- giving --------------------------------------------------------------------------------------------------------

    def _assign(self, role: Role) -> None:
        queue = self._waiting[role]
        while queue and self._serving[role]:
            number = queue.popleft()
            if role == "decode":
                self._send(number)
            else:
                self._give(number, self._choose(role, number), None)

    def _choose(self, role: Role, number: int) -> Station:
        station = self._policy(self._serving[role], self._arrivals[number], self._chosen[role])
        self._chosen[role] += 1
        return station

    def _give(self, number: int, station: Station, moved: Request | None) -> None:
        """Submit a request: a new one, or one that comes with its cache."""
        arrival = self._arrivals[number]
        self._attempts += 1
        name = f"{number}.{self._attempts}"
        if moved is not None:
            request = Request(name, moved.isl_tokens, moved.osl_tokens, moved.generated_tokens, prefilled=True)
        else:
            hit_tokens = self._hit(station, arrival)
            request = Request(name, arrival.isl_tokens, arrival.osl_tokens, cached_tokens=hit_tokens)
            station.prompt_tokens += arrival.isl_tokens
        station.numbers[name] = number
        station.worker.submit(request)

    def _hit(self, station: Station, arrival: Arrival) -> int:
        """Prompt tokens that are in the worker's prefix cache; afterwards the whole prompt is."""
        if station.prefix is None:
            return 0
        if arrival.prefix:
            found = station.hit_tokens(arrival)
            station.prefix.insert(arrival.prefix)
            return found
        if not arrival.hit_tokens:
            return 0
        # The trace says that it was seen before, not where. Who routes by cache finds it; others do by chance.
        share = 1.0 if self._fleet.routing == "kv_aware" else 1.0 / len(self._serving[self._entry])
        return arrival.hit_tokens if self._luck.random() < share else 0

    # -- moving --------------------------------------------------------------------------------------------------------

    def _hand_over(self, number: int, at_ms: float) -> None:
        """Its prompt is computed; the rest is done by a decode worker."""
        if self._arrivals[number].osl_tokens == 1:
            self._finish(number, at_ms)
        else:
            self._waiting[self._second].append(number)
            self._assign(self._second)

    def _send(self, number: int) -> None:
        """Carry the cache of a computed prompt to a worker of the second role."""
        arrival = self._arrivals[number]
        self._move(number, Request(str(number), arrival.isl_tokens, arrival.osl_tokens, 1, prefilled=True))

    def _move(self, number: int, request: Request) -> None:
        """The worker is chosen when the cache sets out."""
        station = self._choose(self._second, number)
        self._moving += 1
        self._timeline.after(
            self._link.transfer_ms(request.kv_tokens), partial(self._arrived, number, station, request)
        )

    def _arrived(self, number: int, station: Station, request: Request) -> None:
        self._moving -= 1
        if not request.prefilled:
            self._waiting[self._entry].append(number)
            self._assign(self._entry)
        elif station.worker.serving:
            self._give(number, station, request)
        elif self._serving[self._second]:
            self._move(number, request)
        else:
            self._waiting[self._second].append(number)

    def _empty(self, station: Station) -> None:
        """Move the requests of a draining worker to others, live. Prompts are finished where they are."""
        if station.worker.record.role == self._second:
            for name, number in list(station.numbers.items()):
                if self._serving[self._second]:
                    self._migrate(station, name, number)

    def _migrate(self, station: Station, name: str, number: int) -> None:
        """Copy its cache while it goes on, then take it out; its last part follows while it stands still."""
        engine = station.worker.engine
        itl_ms = engine.load().itl_ms
        copy = self._link.live_copy(engine.kv_tokens(name), 1.0 / itl_ms if itl_ms else 0.0)
        destination = self._choose(self._second, number)

        def switch() -> None:
            if name not in station.numbers or not station.worker.alive:
                return  # it has finished meanwhile, or is lost with its worker
            taken = engine.take(name, self._timeline.now_ms)
            if taken is not None:  # else it finishes here
                self._leaving[name] = partial(self._switch, copy.downtime_ms, destination, taken)
                station.worker.go_on()

        self._timeline.after(copy.copying_ms, switch)

    def _switch(self, downtime_ms: float, destination: Station, request: Request, number: int) -> None:
        """It has left with the token that it got last; what is missing of its cache follows."""
        self.served.migrated += 1
        self._moving += 1
        self._timeline.after(downtime_ms, partial(self._arrived, number, destination, request))

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _finish(self, number: int, at_ms: float) -> None:
        arrival = self._arrivals[number]
        first_ms = self._first_token_ms[number]
        ttft_ms = first_ms - self.served.arrived_ms(number)
        following = arrival.osl_tokens - 1
        itl_ms = (at_ms - first_ms) / following if following else None
        self._end(number)
        self.served.finish(number, ttft_ms, itl_ms)
        fleet = self._fleet
        itl_met = itl_ms is None or itl_ms <= fleet.itl_ms
        self._interval.finished(arrival.osl_tokens, ttft_ms, itl_ms, ttft_met=ttft_ms <= fleet.ttft_ms, itl_met=itl_met)

    def _end(self, number: int) -> None:
        del self._arrivals[number]
        self._first_token_ms.pop(number, None)

    def _lose(self, station: Station) -> None:
        """A worker is gone: what it held begins again, before all others."""
        for name in station.numbers:
            self._leaving.pop(name, None)
        numbers = list(station.numbers.values())
        self.served.retried += len(numbers)
        self._waiting[self._entry].extendleft(reversed(numbers))
        self._assign(self._entry)

    # -- telling -------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        interval, self._interval = self._interval, Interval()
        self._sequence += 1
        sample = interval.sample(self._sequence, int(REPORT_INTERVAL_MS), queued=self.queued, in_flight=self.in_flight)
        with suppress(BusUnavailable):  # what cannot be said now is never said
            self._bus.send(self._subject, encode(TrafficReport(self._model, "gateway", START_MS, sample)))
        self._timeline.after(REPORT_INTERVAL_MS, self._report)
