"""Frontend of the chaos world: user requests, their owners, and restarts of lost requests.

It knows of a worker only what the network delivers. After three unanswered requests it gives a worker up and starts
its requests again elsewhere, under the next hop. The worker may continue them; their results are ignored.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from loadline.client.handover.bus import reply_handler
from loadline.client.handover.messages import ClaimReply, ClaimRequest
from loadline.client.handover.ownership import RequestOwners
from loadline.errors import BusUnavailable
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.chaos.request_client import (
    HeldRequestsQuery,
    HeldRequestsReply,
    RequestEnded,
    SubmitRequest,
    ended_subject,
    held_subject,
    submit_subject,
)
from loadline.sim.chaos.request_runs import RequestRuns, WorkerInstance
from loadline.sim.chaos.stub_engine import TOKEN_MS
from loadline.sim.engine import Request
from loadline.sim.world import peers
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.migration import handover_bus
from loadline.sim.world.peers import Acknowledgement
from loadline.sim.world.tasks import VirtualTask, sleep
from loadline.sim.world.timeline import Timeline

ARRIVAL_INTERVAL_MS: Final = 1_000.0
"""Mean time between two arrivals."""
REQUEST_MS_MIN: Final = 2_000.0
REQUEST_MS_MAX: Final = 20_000.0
"""Longer requests would outlast a drain, which may take 25 s."""
_PROMPT_TOKENS: Final = (300, 1_500)
_POLL_MS: Final = 5_000.0
_TRIES: Final = 3
_RETRY_MS: Final = 500.0

PoolKey = tuple[str, str]


class OpenRequest(Struct):
    """A request that has not ended."""

    pool: PoolKey
    request: Request
    arrived_ms: float
    assigned_ms: float = 0.0
    """Time at which its owner got it."""


class ChaosFrontend:
    """The frontend of all models.

    Args:
        timeline: Virtual time.
        network: Bus between workers and frontends.
        pools: Pools that receive requests.
        serving: Returns the workers of a pool that accept requests.
        report: Receives violations of invariants.
    """

    def __init__(
        self,
        timeline: Timeline,
        network: VirtualBus,
        pools: Sequence[PoolKey],
        serving: Callable[[PoolKey], list[WorkerInstance]],
        report: ReportViolation,
    ) -> None:
        self.connection = network.connection()
        self.owners = RequestOwners()
        self.runs = RequestRuns(self.owners, report)
        self.open: dict[str, OpenRequest] = {}
        """Open requests by id."""
        self.counts = {"requests": 0, "ended": 0, "restarted": 0}
        self._timeline = timeline
        self._pools = pools
        self._serving = serving
        self._rng = timeline.rng("requests")
        self._misses: dict[WorkerInstance, int] = {}
        self._polling: set[WorkerInstance] = set()
        for model in sorted({model for model, _ in pools}):
            VirtualTask(handover_bus(self.connection).serve_frontend(model, self._answer_claim))
            VirtualTask(self.connection.answer(ended_subject(model), reply_handler(RequestEnded, self._answer_ended)))
        self._schedule_arrival()
        timeline.call_later(_POLL_MS, self._poll_workers)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _schedule_arrival(self) -> None:
        self._timeline.call_later(self._rng.expovariate(1.0 / ARRIVAL_INTERVAL_MS), self._arrive)

    def _arrive(self) -> None:
        rng = self._rng
        self.counts["requests"] += 1
        name, tokens = f"r{self.counts['requests']}", rng.uniform(REQUEST_MS_MIN, REQUEST_MS_MAX) / TOKEN_MS
        request = Request(name, rng.randint(*_PROMPT_TOKENS), int(tokens))
        self.open[name] = OpenRequest(rng.choice(self._pools), request, self._timeline.now_ms)
        self._assign(name)
        self._schedule_arrival()

    def _assign(self, name: str) -> None:
        """Assign a request to a worker; without a serving worker it waits for the next poll."""
        one = self.open[name]
        serving = self._serving(one.pool)
        if serving:
            instance = self._rng.choice(serving)
            hop = self.owners.assign(name, *instance)
            self.runs.record_assignment(name, hop)
            self.counts["restarted"] += hop > 0
            one.assigned_ms = self._timeline.now_ms
            VirtualTask(self._submit(instance, Request(name, one.request.isl_tokens, one.request.osl_tokens, hop=hop)))

    async def _submit(self, instance: WorkerInstance, request: Request) -> None:
        """Submit a request until the worker acknowledges it; after the last try assign it to another worker."""
        worker, incarnation = instance
        for _ in range(_TRIES):
            try:
                await peers.request(
                    self.connection, submit_subject(worker), SubmitRequest(request, incarnation), Acknowledgement
                )
            except BusUnavailable:
                await sleep(self._timeline, _RETRY_MS)
            else:
                return
        if self.owners.accepts(request.request_id, request.hop):
            self._assign(request.request_id)

    async def _answer_ended(self, ended: RequestEnded) -> Acknowledgement:
        yes = self.owners.accepts(ended.request_id, ended.hop)
        if yes:
            self.counts["ended"] += 1
            self.owners.end(ended.request_id)
            del self.open[ended.request_id]
        return Acknowledgement(yes)

    def _answer_claim(self, claim: ClaimRequest) -> ClaimReply:
        reply = self.owners.answer(claim)
        if reply.granted:
            self.open[claim.request_id].assigned_ms = self._timeline.now_ms
        return reply

    # -- workers -------------------------------------------------------------------------------------------------------

    def _poll_workers(self) -> None:
        """Assign waiting requests and ask all owners which requests they hold."""
        self._timeline.call_later(_POLL_MS, self._poll_workers)
        if not self.connection.connected:
            return
        instances: dict[WorkerInstance, None] = {}
        for name in list(self.open):
            owner = self.owners.owner(name)
            if owner is None:
                self._assign(name)
            else:
                instances[owner.worker, owner.incarnation] = None
        self._misses = {instance: self._misses.get(instance, 0) for instance in instances}
        for instance in instances:
            if instance not in self._polling:
                VirtualTask(self._poll(instance))

    async def _poll(self, instance: WorkerInstance) -> None:
        """Ask a worker which requests it holds, and reassign those it lacks; all of them after the last miss."""
        worker, incarnation = instance
        asked_ms = self._timeline.now_ms
        self._polling.add(instance)
        names: list[str] = []
        try:
            names = (
                await peers.request(
                    self.connection, held_subject(worker), HeldRequestsQuery(incarnation), HeldRequestsReply
                )
            ).request_ids
            self._misses[instance] = 0
        except BusUnavailable:
            self._misses[instance] = self._misses.get(instance, 0) + 1
        self._polling.discard(instance)
        if self._misses[instance] in range(1, _TRIES):
            return
        for name in self._requests_of(instance):
            if name not in names and self.open[name].assigned_ms < asked_ms:
                self._assign(name)

    def _requests_of(self, instance: WorkerInstance) -> list[str]:
        owners = ((name, self.owners.owner(name)) for name in self.open)
        return [name for name, owner in owners if owner and (owner.worker, owner.incarnation) == instance]
