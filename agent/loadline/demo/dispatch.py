"""Routing of requests to workers, such that every request ends exactly once. Pure: no clock, no I/O.

A request is at one place at a time: it waits here for a worker of a role, or one worker holds it under an id of that
attempt (``<gateway>.<number>.<attempt>``). Only the current attempt counts. A request restarts from its prompt if its
worker is silent, leaves, returns as another incarnation, or does not list the request as held.

Workers migrate requests under the same id, and claim their ownership here: see ``ownership``.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from loadline.client.handover.messages import ClaimReply, ClaimRequest
from loadline.client.handover.ownership import RequestOwner, RequestOwners
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role
from loadline.demo.account import RequestAccount
from loadline.demo.protocol import HEARTBEAT_S, ITEMS_MAX, ResultBatch, Submission
from loadline.sim.engine import EngineEvent, Request

SILENT_S = 6 * HEARTBEAT_S
"""Time without messages after which a worker that holds requests counts as dead."""
# A suspect gets no requests until it sends a message or its lease (10 s) has expired.
_SUSPECT_S = 15.0
# A request sent this long ago that the worker does not list as held was lost in transit.
_MISSING_S = 4 * HEARTBEAT_S
# A pause of this process must not look like silence of the workers.
_TICK_COUNTED_MAX_S = 0.25


class DispatchedRequest(Struct, eq=False):
    """Request in progress. Times are virtual ms."""

    number: int
    isl_tokens: int
    osl_tokens: int
    arrived_ms: float
    due_ms: float
    attempt: int = 0
    first_token_ms: float | None = None
    sent_s: float = 0.0


class _Peer(Struct, eq=False):
    """Worker as the gateway knows it."""

    name: str
    role: Role
    incarnation: int
    ready_ms: float  # virtual time since which it accepts requests
    routable: bool = False
    last_seen_s: float = 0.0
    suspect_until_s: float = 0.0
    tokens: int = 0  # prompt tokens of its requests: the measure of its load
    tasks: dict[str, DispatchedRequest] = {}
    outbox: list[Submission] = []


class Dispatcher:
    """Router of requests through the roles in turn.

    Args:
        gateway: Prefix of request ids, different from that of any earlier gateway.
        roles: ``("prefill", "decode")`` or ``("aggregated",)``.
        account: Counters of requests.
    """

    def __init__(self, gateway: str, roles: Sequence[Role], account: RequestAccount) -> None:
        self._gateway = gateway
        self._roles = tuple(roles)
        self._account = account
        self._waiting: dict[Role, deque[DispatchedRequest]] = {role: deque() for role in roles}
        self._peers: dict[str, _Peer] = {}
        self._owners = RequestOwners()
        self._connected_s = 0.0  # time with a connection to workers

    @property
    def queued(self) -> int:
        """Number of requests that wait here for a worker."""
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def in_flight(self) -> int:
        """Number of requests that workers hold."""
        return sum(len(peer.tasks) for peer in self._peers.values())

    @property
    def complete(self) -> bool:
        """True if every role has a worker."""
        return all(any(self._candidates(role)) for role in self._roles)

    def update_workers(self, records: Iterable[WorkerRecord], now_ms: float) -> None:
        """Apply the registered workers. A worker that is missing gets no new requests and may finish those it has."""
        current = {record.worker: record for record in records if record.role in self._roles}
        for peer in list(self._peers.values()):
            record = current.get(peer.name)
            if record is None:
                peer.routable = False
            elif record.incarnation != peer.incarnation:
                self._lose(peer, now_ms)
                del self._peers[peer.name]
        for record in current.values():
            peer = self._peers.setdefault(
                record.worker,
                _Peer(record.worker, record.role, record.incarnation, now_ms, last_seen_s=self._connected_s),
            )
            ready = record.state == "ready"
            if ready and not peer.routable:
                peer.ready_ms = now_ms
            peer.routable = ready
        self._remove_gone()

    def arrive(self, number: int, isl_tokens: int, osl_tokens: int, at_ms: float) -> None:
        """Count and queue a new request."""
        self._account.arrived += 1
        self._waiting[self._roles[0]].append(DispatchedRequest(number, isl_tokens, osl_tokens, at_ms, at_ms))

    def advance_time(self, elapsed_s: float, now_ms: float) -> None:
        """Add real time with a connection to workers, and restart the requests of workers silent for too long."""
        self._connected_s += min(elapsed_s, _TICK_COUNTED_MAX_S)
        for peer in self._peers.values():
            if peer.tasks and self._connected_s - peer.last_seen_s > SILENT_S:
                peer.suspect_until_s = self._connected_s + _SUSPECT_S
                self._lose(peer, now_ms)
        self._remove_gone()

    def assign(self) -> None:
        """Assign waiting requests to the least loaded worker of their role."""
        for role, queue in self._waiting.items():
            while queue:
                peer = min(self._candidates(role), key=lambda peer: (peer.tokens, peer.name), default=None)
                if peer is None:
                    break
                self._submit(queue.popleft(), peer)

    def outboxes(self) -> list[tuple[str, list[Submission]]]:
        """Return the submissions to send by worker; confirm each batch with ``confirm_sent``."""
        return [(peer.name, peer.outbox[:ITEMS_MAX]) for peer in self._peers.values() if peer.outbox]

    def confirm_sent(self, worker: str, count: int) -> None:
        """Remove the first ``count`` submissions from the outbox of a worker: the bus has accepted them."""
        if (peer := self._peers.get(worker)) is not None:
            del peer.outbox[:count]

    def apply_results(self, batch: ResultBatch, now_ms: float) -> None:
        """Apply results of a worker; those of an older incarnation, former owner or earlier attempt are ignored."""
        peer = self._peers.get(batch.worker)
        if peer is None or peer.incarnation != batch.incarnation:
            return
        peer.last_seen_s, peer.suspect_until_s = self._connected_s, 0.0
        for event in batch.events:
            if not self._owners.accepts(event.request_id, batch.hops.get(event.request_id, 0)):
                continue
            if (task := self._task_of(peer, event)) is not None:
                self._advance(task, event, peer)
        if batch.leaving:
            peer.suspect_until_s = self._connected_s + _SUSPECT_S
            self._lose(peer, now_ms)
        elif batch.held is not None:
            held = set(batch.held)
            old_s = self._connected_s - _MISSING_S
            missing = [name for name, task in peer.tasks.items() if name not in held and task.sent_s < old_s]
            self._lose(peer, now_ms, missing)

    def claim(self, claim: ClaimRequest) -> ClaimReply:
        """Grant or refuse a worker's claim to a request that was handed over to it, or that it resumes."""
        before = self._owners.owner(claim.request_id)
        peer = self._peers.get(claim.worker)
        if before is None or peer is None or peer.incarnation != claim.incarnation:
            return _refuse(before)
        reply = self._owners.answer(claim)
        if reply.granted and before.worker != claim.worker:
            self._account.migrated += 1
            self._add(peer, claim.request_id, self._remove(self._peers[before.worker], claim.request_id))
        return reply

    def _candidates(self, role: Role) -> Iterable[_Peer]:
        return (
            peer
            for peer in self._peers.values()
            if peer.role == role
            and peer.routable
            and peer.suspect_until_s <= self._connected_s
            and len(peer.tasks) < ITEMS_MAX
        )

    def _submit(self, task: DispatchedRequest, peer: _Peer) -> None:
        handed_over = peer.role == "decode"
        task.attempt += 1
        name = f"{self._gateway}.{task.number}.{task.attempt}"
        request = Request(name, task.isl_tokens, task.osl_tokens, int(handed_over), prefilled=handed_over)
        self._owners.assign(name, peer.name, peer.incarnation)
        self._add(peer, name, task)
        # A request that waited for a worker reaches it no earlier than the worker became ready.
        peer.outbox.append(Submission(request, max(task.due_ms, peer.ready_ms)))

    def _add(self, peer: _Peer, name: str, task: DispatchedRequest) -> None:
        """Add a request to those of a worker."""
        if not peer.tasks:
            peer.last_seen_s = self._connected_s
        task.sent_s = self._connected_s
        peer.tasks[name] = task
        peer.tokens += task.isl_tokens

    def _remove(self, peer: _Peer, name: str) -> DispatchedRequest:
        """Remove a request from those of a worker."""
        task = peer.tasks.pop(name)
        peer.tokens -= task.isl_tokens
        return task

    def _task_of(self, peer: _Peer, event: EngineEvent) -> DispatchedRequest | None:
        """Return the request of an event; remove it from the worker if the event ends it there."""
        name = event.request_id
        if name not in peer.tasks:
            return None
        if event.kind == "preempted" or (event.kind == "first_token" and peer.role != "prefill"):
            return peer.tasks[name]
        self._owners.end(name)
        return self._remove(peer, name)

    def _advance(self, task: DispatchedRequest, event: EngineEvent, peer: _Peer) -> None:
        if event.kind == "refused":
            self._account.refused += 1
        elif event.kind == "preempted":
            self._account.preempted += 1
        elif event.kind == "finished":
            self._finish(task, event.at_ms)
        else:
            # The first token that the user received counts: recomputation after a loss delays only later tokens.
            task.first_token_ms = event.at_ms if task.first_token_ms is None else task.first_token_ms
            # A decode worker also reports it, for a request that arrived without its KV cache.
            if peer.role == "prefill":
                self._hand_over(task, event.at_ms)

    def _hand_over(self, task: DispatchedRequest, at_ms: float) -> None:
        if task.osl_tokens == 1:
            self._finish(task, at_ms)
        else:
            task.due_ms = at_ms
            self._waiting["decode"].append(task)

    def _finish(self, task: DispatchedRequest, at_ms: float) -> None:
        first_ms = at_ms if task.first_token_ms is None else task.first_token_ms
        following = task.osl_tokens - 1
        itl_ms = (at_ms - first_ms) / following if following else None
        self._account.finish(task.osl_tokens, first_ms - task.arrived_ms, itl_ms)

    def _lose(self, peer: _Peer, now_ms: float, names: Sequence[str] | None = None) -> None:
        """Restart requests of a worker ahead of all others; by default all of them."""
        for name in reversed(list(peer.tasks) if names is None else names):
            task = self._remove(peer, name)
            self._owners.end(name)
            task.due_ms = now_ms
            self._account.retried += 1
            self._waiting[self._roles[0]].appendleft(task)
        kept = {submission.request.request_id for submission in peer.outbox} & peer.tasks.keys()
        peer.outbox = [submission for submission in peer.outbox if submission.request.request_id in kept]

    def _remove_gone(self) -> None:
        """Remove unregistered workers without requests, but not suspects, which must not be tried again at once."""
        for peer in list(self._peers.values()):
            if not peer.routable and not peer.tasks and peer.suspect_until_s <= self._connected_s:
                del self._peers[peer.name]


def _refuse(owner: RequestOwner | None) -> ClaimReply:
    return (
        ClaimReply(granted=False)
        if owner is None
        else ClaimReply(granted=False, worker=owner.worker, incarnation=owner.incarnation)
    )
