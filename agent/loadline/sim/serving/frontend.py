"""Frontend of a simulation: dispatches requests to workers and reports traffic to the agent.

Every request is in one place at a time: in a queue here, at one worker, or in transfer between two. A request whose
worker is lost restarts from its prompt. A request that fits into no worker's cache is refused.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from loadline.client.handover.messages import ClaimReply, ClaimRequest
from loadline.client.handover.ownership import RequestOwners
from loadline.client.traffic_interval import TrafficInterval
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.vocabulary.scalars import Role
from loadline.errors import BusUnavailable
from loadline.sim.engine import EngineEvent, EngineKnobs, Request
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPool
from loadline.sim.serving.prefix import PrefixCache
from loadline.sim.serving.request_log import RequestLog
from loadline.sim.serving.routing import ROUTING_POLICIES, DispatchQueue, RoutedWorker
from loadline.sim.serving.transfer import TransferLink
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.migration import handover_bus
from loadline.sim.world.tasks import VirtualTask
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.sim.world.worker import SimulatedWorker
from loadline.traces import PREFIX_BLOCK_TOKENS, Arrival
from loadline.wire.codec import encode
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects

REPORT_INTERVAL_MS = 1_000.0


class SimulatedFrontend:
    """One frontend for one model.

    Args:
        timeline: Virtual time.
        model: The model that it serves.
        pools: The model's pools.
        fleet: Routing and transfer knobs.
        bus: Its connection to the bus.
        objectives: Objectives by which requests are judged.
        served: Log of all requests.
    """

    def __init__(
        self,
        timeline: Timeline,
        model: str,
        pools: Mapping[str, SimulatedPool],
        fleet: SimulatedFleetKnobs,
        bus: BusConnection,
        *,
        objectives: ObjectiveKnobs,
        served: RequestLog,
    ) -> None:
        self.log = served
        self._timeline = timeline
        self._model = model
        self._pools = pools
        self._fleet = fleet
        self._objectives = objectives
        self._bus = bus
        self._routing_policy = ROUTING_POLICIES[fleet.routing]
        self._rng = timeline.rng("prefix")
        transfer = fleet.transfer
        self.transfer_link = TransferLink(
            transfer.bandwidth_gbytes_per_s, transfer.latency_ms, transfer.kv_bytes_per_token
        )
        roles: list[Role] = [pool.role for pool in pools.values()]
        self._first_role: Role = "prefill" if "prefill" in roles else "aggregated"
        self._second_role: Role = "decode" if "prefill" in roles else "aggregated"
        self._engines: dict[Role, list[tuple[str, EngineKnobs]]] = {
            role: [(name, pool.engine) for name, pool in pools.items() if pool.role == role]
            for role in (self._first_role, self._second_role)
        }
        self._workers: dict[str, RoutedWorker] = {}
        self._queues: dict[tuple[str, ...], DispatchQueue] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._first_token_ms: dict[int, float] = {}
        self._transferring = 0
        self._owners = RequestOwners()
        self._interval = TrafficInterval()
        self._sequence = 0
        self._subject = Subjects("loadline").traffic(model, "gateway")
        VirtualTask(handover_bus(bus).serve_frontend(model, self._answer_claim))
        timeline.call_later(REPORT_INTERVAL_MS, self._report)

    @property
    def queued(self) -> int:
        """Requests that wait here for a worker."""
        return sum(len(lane.waiting) for lane in self._queues.values())

    @property
    def in_flight(self) -> int:
        """Requests at workers or in transfer."""
        return sum(len(station.requests) for station in self._workers.values()) + self._transferring

    def submit(self, arrival: Arrival) -> None:
        """Accept a new request."""
        number = self.log.record_arrival(self._timeline.now_ms, arrival.isl_tokens)
        self._arrivals[number] = arrival
        self._interval.arrived(arrival.isl_tokens)
        request = Request(str(number), arrival.isl_tokens, arrival.osl_tokens)
        lane = self._queue(self._first_role, request)
        follows = request.osl_tokens > 1  # a single token needs no decode worker
        if not lane.pools or (follows and not self._queue(self._second_role, request).pools):
            self._forget(number)
            self.log.record_refusal(number)
            return
        lane.waiting.append((number, request))
        self._dispatch_waiting(lane)

    def on_worker_changed(self, worker: SimulatedWorker) -> None:
        """Handle a worker that became ready, started to drain or ended."""
        name = worker.record.worker
        station = self._workers.get(name)
        if station is None:
            blocks = self._pools[worker.record.pool].knobs.prefix_cache_blocks
            station = RoutedWorker(worker, name, PrefixCache(blocks, PREFIX_BLOCK_TOKENS) if blocks else None)
            self._workers[name] = station
        lanes = [lane for pools, lane in self._queues.items() if worker.record.pool in pools]
        for lane in lanes:
            lane.serving = self._serving_workers(lane.pools)
        if not worker.alive:
            del self._workers[name]
            self._requeue(station)
        for lane in lanes:
            self._dispatch_waiting(lane)

    def on_engine_event(self, worker: SimulatedWorker, event: EngineEvent) -> None:
        """Handle an event of a request at a worker."""
        station = self._workers[worker.record.worker]
        number = station.requests[event.request_id]
        match event.kind:
            case "preempted":
                self.log.preempted += 1
            case "first_token":
                # The first token that the user got counts; computing it again only delays the following ones.
                self._first_token_ms.setdefault(number, event.at_ms)
                station.prefill_done(event.request_id)
                if worker.record.role == "prefill":
                    station.remove(event.request_id)
                    self._start_decode(number, event)
            case "finished":
                station.remove(event.request_id)
                self._finish(number, event)
            case "refused" | "detached":
                raise AssertionError(
                    f"request {number} is {event.kind} by worker {station.name}, which was chosen for it"
                )

    # -- dispatch ------------------------------------------------------------------------------------------------------

    def _queue(self, role: Role, request: Request) -> DispatchQueue:
        """Return the queue for requests of this length; one without pools means that no worker can ever hold them."""
        isl_tokens, osl_tokens = request.isl_tokens, request.osl_tokens
        holding = [
            name
            for name, engine in self._engines[role]
            if engine.blocks_needed(isl_tokens, osl_tokens) <= engine.kv_blocks_total
        ]
        pools = tuple(holding)
        found = self._queues.get(pools)
        if found is None:
            found = self._queues[pools] = DispatchQueue(pools, self._serving_workers(pools))
        return found

    def _serving_workers(self, pools: tuple[str, ...]) -> list[RoutedWorker]:
        workers = self._workers.values()
        return [one for one in workers if one.worker.record.pool in pools and one.worker.serving]

    def _dispatch_waiting(self, lane: DispatchQueue) -> None:
        while lane.waiting and lane.serving:
            number, request = lane.waiting.popleft()
            if request.prefilled:
                self._transfer(lane, number, request)
            else:
                self._dispatch(number, self._route(lane, number), request)

    def _route(self, lane: DispatchQueue, number: int) -> RoutedWorker:
        station = self._routing_policy(lane.serving, self._arrivals[number], lane.dispatched)
        lane.dispatched += 1
        return station

    def _dispatch(self, number: int, station: RoutedWorker, request: Request) -> None:
        """Submit a request with its cache, or one whose tokens must be computed."""
        name, record = str(number), station.worker.record
        prompt_tokens = hit_tokens = 0
        if not request.prefilled:
            hit_tokens = self._prefix_hit_tokens(station, self._arrivals[number])
            self._interval.looked_up(request.isl_tokens, hit_tokens)
            prompt_tokens = request.isl_tokens + request.generated_tokens
        station.add(name, number, prompt_tokens)
        hop = self._owners.assign(name, record.worker, record.incarnation)
        station.worker.submit(replace(request, cached_tokens=hit_tokens, hop=hop))

    def _prefix_hit_tokens(self, station: RoutedWorker, arrival: Arrival) -> int:
        """Return the prompt tokens in the worker's prefix cache, and insert the whole prompt."""
        if station.prefix is None:
            return 0
        if arrival.prefix:
            found = station.hit_tokens(arrival)
            station.prefix.insert(arrival.prefix)
            return found
        if not arrival.hit_tokens:
            return 0
        # The trace shows that the prefix was computed before, but not where: kv_aware routing finds it, other policies
        # only by chance.
        role = station.worker.record.role
        serving = sum(one.worker.record.role == role and one.worker.serving for one in self._workers.values())
        share = 1.0 if self._fleet.routing == "kv_aware" else 1.0 / serving
        return arrival.hit_tokens if self._rng.random() < share else 0

    def _answer_claim(self, claim: ClaimRequest) -> ClaimReply:
        """Grant or refuse a worker's claim.

        A claim to a request whose worker is lost or no longer has it is refused.
        """
        name, owner = claim.request_id, self._owners.owner(claim.request_id)
        if owner is None:
            return ClaimReply(granted=False)
        current, claimant = self._workers.get(owner.worker), self._workers.get(claim.worker)
        there = claimant is not None and claimant.worker.record.incarnation == claim.incarnation
        if current is None or claimant is None or not there or name not in current.requests:
            return ClaimReply(granted=False)
        reply = self._owners.answer(claim)
        if reply.granted and current is not claimant:
            current.transfer(name, claimant)
            self.log.migrated += 1
        return reply

    # -- transfers -----------------------------------------------------------------------------------------------------

    def _start_decode(self, number: int, event: EngineEvent) -> None:
        """Queue a request for decode after its prefill."""
        if self._arrivals[number].osl_tokens == 1:
            self._finish(number, event)
        else:
            arrival = self._arrivals[number]
            request = Request(
                str(number), arrival.isl_tokens, arrival.osl_tokens, 1, prefilled=True, last_token_ms=event.at_ms
            )
            lane = self._queue(self._second_role, request)
            lane.waiting.append((number, request))
            self._dispatch_waiting(lane)

    def _transfer(self, lane: DispatchQueue, number: int, request: Request) -> None:
        """Transfer a cache to a decode worker, which is chosen at the start of the transfer."""
        station = self._route(lane, number)
        self._transferring += 1
        self._timeline.call_later(
            self.transfer_link.transfer_ms(request.kv_tokens), partial(self._on_transferred, number, station, request)
        )

    def _on_transferred(self, number: int, station: RoutedWorker, request: Request) -> None:
        self._transferring -= 1
        if station.worker.serving:
            self._dispatch(number, station, request)
        else:
            lane = self._queue(self._second_role, request)
            lane.waiting.append((number, request))
            self._dispatch_waiting(lane)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _finish(self, number: int, event: EngineEvent) -> None:
        arrival = self._arrivals[number]
        first_ms = self._first_token_ms[number]
        ttft_ms = first_ms - self.log.arrived_ms(number)
        following = arrival.osl_tokens - 1
        itl_ms = (event.at_ms - first_ms) / following if following else None
        self._forget(number)
        self.log.record_finish(number, ttft_ms, itl_ms, event.token_gap_max_ms)
        objectives = self._objectives
        ttft_met = ttft_ms <= objectives.ttft_ms
        itl_met = itl_ms is None or itl_ms <= objectives.itl_ms
        self._interval.finished(arrival.osl_tokens, ttft_ms, itl_ms, ttft_met=ttft_met, itl_met=itl_met)

    def _forget(self, number: int) -> None:
        del self._arrivals[number]
        self._owners.end(str(number))
        self._first_token_ms.pop(number, None)

    def _requeue(self, station: RoutedWorker) -> None:
        """Restart the requests of a lost worker, before all others."""
        self.log.retried += len(station.requests)
        lanes = []
        for number in reversed(station.requests.values()):
            arrival = self._arrivals[number]
            # The time of its newest token is lost with the worker: its next gap counts from now.
            token_ms = self._timeline.now_ms if number in self._first_token_ms else None
            request = Request(str(number), arrival.isl_tokens, arrival.osl_tokens, last_token_ms=token_ms)
            lane = self._queue(self._first_role, request)
            lane.waiting.appendleft((number, request))
            lanes.append(lane)
        for lane in lanes:
            self._dispatch_waiting(lane)

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        interval, self._interval = self._interval, TrafficInterval()
        self._sequence += 1
        sample = interval.sample(self._sequence, int(REPORT_INTERVAL_MS), queued=self.queued, in_flight=self.in_flight)
        with suppress(BusUnavailable):  # reports are not queued
            self._bus.publish_now(self._subject, encode(TrafficReport(self._model, "gateway", START_MS, sample)))
        self._timeline.call_later(REPORT_INTERVAL_MS, self._report)
