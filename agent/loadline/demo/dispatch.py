"""Which worker gets which request, and that every request ends exactly once. Pure: no clock, no I/O.

A request is at one place at a time: waiting here for a role, or given to one worker under an id of its own for that
attempt (``<gateway>.<number>.<attempt>``). Only the current attempt counts. A worker that falls silent, leaves, comes
back as another incarnation, or does not hold what it was given, loses it: the request starts again from its prompt.

Workers move requests among themselves, under the same id. Who has one is known here, by claims: see ``ownership``.
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
"""A worker that holds requests and says nothing for so long is taken for dead."""
# It is not tried again before it is heard or its lease (10 s) must be over.
_SUSPECT_S = 15.0
# What a worker was given so long ago and does not say it holds, was lost on the way.
_MISSING_S = 4 * HEARTBEAT_S
# A pause of our own must not look like silence of the others.
_TICK_COUNTS_MAX_S = 0.25


class DispatchedRequest(Struct, eq=False):
    """A request on its way. Times are virtual ms."""

    number: int
    isl_tokens: int
    osl_tokens: int
    arrived_ms: float
    due_ms: float
    attempt: int = 0
    first_token_ms: float | None = None
    given_s: float = 0.0


class _Peer(Struct, eq=False):
    """A worker as the gateway sees it."""

    name: str
    role: Role
    incarnation: int
    ready_ms: float  # virtual time since which it may be given work
    routable: bool = False
    heard_s: float = 0.0
    suspect_until_s: float = 0.0
    tokens: int = 0  # prompt tokens of what it was given: the measure of its load
    tasks: dict[str, DispatchedRequest] = {}
    outbox: list[Submission] = []


class Dispatcher:
    """Routes requests through the roles in turn.

    Args:
        gateway: Begins the ids of requests; unlike that of any gateway before.
        roles: ``("prefill", "decode")`` or ``("aggregated",)``.
        served: The account.
    """

    def __init__(self, gateway: str, roles: Sequence[Role], served: RequestAccount) -> None:
        self._gateway = gateway
        self._roles = tuple(roles)
        self._served = served
        self._waiting: dict[Role, deque[DispatchedRequest]] = {role: deque() for role in roles}
        self._peers: dict[str, _Peer] = {}
        self._owners = RequestOwners()
        self._patience_s = 0.0  # our own time, which stands still while nobody can be heard

    @property
    def queued(self) -> int:
        """Requests that wait here for a worker."""
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def in_flight(self) -> int:
        """Requests that workers hold."""
        return sum(len(peer.tasks) for peer in self._peers.values())

    @property
    def complete(self) -> bool:
        """Whether there is a worker for every role."""
        return all(any(self._candidates(role)) for role in self._roles)

    def see(self, records: Iterable[WorkerRecord], now_ms: float) -> None:
        """The registry's view: all workers there are. Who is not in it gets nothing new, but may finish what it has."""
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
                record.worker, _Peer(record.worker, record.role, record.incarnation, now_ms, heard_s=self._patience_s)
            )
            ready = record.state == "ready"
            if ready and not peer.routable:
                peer.ready_ms = now_ms
            peer.routable = ready
        self._forget()

    def arrive(self, number: int, isl_tokens: int, osl_tokens: int, at_ms: float) -> None:
        """A new request."""
        self._served.arrived += 1
        self._waiting[self._roles[0]].append(DispatchedRequest(number, isl_tokens, osl_tokens, at_ms, at_ms))

    def pass_time(self, elapsed_s: float, now_ms: float) -> None:
        """Real time passed in which workers could be heard: who was silent for too long loses its requests."""
        self._patience_s += min(elapsed_s, _TICK_COUNTS_MAX_S)
        for peer in self._peers.values():
            if peer.tasks and self._patience_s - peer.heard_s > SILENT_S:
                peer.suspect_until_s = self._patience_s + _SUSPECT_S
                self._lose(peer, now_ms)
        self._forget()

    def assign(self) -> None:
        """Give waiting requests to the least loaded worker of their role."""
        for role, queue in self._waiting.items():
            while queue:
                peer = min(self._candidates(role), key=lambda peer: (peer.tokens, peer.name), default=None)
                if peer is None:
                    break
                self._give(queue.popleft(), peer)

    def outboxes(self) -> list[tuple[str, list[Submission]]]:
        """What is to be sent to whom; say ``sent`` when it was."""
        return [(peer.name, peer.outbox[:ITEMS_MAX]) for peer in self._peers.values() if peer.outbox]

    def sent(self, worker: str, count: int) -> None:
        """The first ``count`` submissions of the worker's outbox were handed to the bus."""
        if (peer := self._peers.get(worker)) is not None:
            del peer.outbox[:count]

    def heard(self, batch: ResultBatch, now_ms: float) -> None:
        """What a worker said. That of an older incarnation, a former owner or a given up attempt is void."""
        peer = self._peers.get(batch.worker)
        if peer is None or peer.incarnation != batch.incarnation:
            return
        peer.heard_s, peer.suspect_until_s = self._patience_s, 0.0
        for event in batch.events:
            if not self._owners.accepts(event.request_id, batch.hops.get(event.request_id, 0)):
                continue
            if (task := self._task_of(peer, event)) is not None:
                self._advance(task, event, peer)
        if batch.leaving:
            peer.suspect_until_s = self._patience_s + _SUSPECT_S
            self._lose(peer, now_ms)
        elif batch.held is not None:
            held = set(batch.held)
            old_s = self._patience_s - _MISSING_S
            missing = [name for name, task in peer.tasks.items() if name not in held and task.given_s < old_s]
            self._lose(peer, now_ms, missing)

    def claim(self, claim: ClaimRequest) -> ClaimReply:
        """Grant or refuse a worker's claim to a request that another one has handed over, or that is its own again."""
        before = self._owners.owner(claim.request_id)
        peer = self._peers.get(claim.worker)
        if before is None or peer is None or peer.incarnation != claim.incarnation:
            return _refuse(before)
        reply = self._owners.answer(claim)
        if reply.granted and before.worker != claim.worker:
            self._served.moved += 1
            self._hold(peer, claim.request_id, self._take(self._peers[before.worker], claim.request_id))
        return reply

    def _candidates(self, role: Role) -> Iterable[_Peer]:
        return (
            peer
            for peer in self._peers.values()
            if peer.role == role
            and peer.routable
            and peer.suspect_until_s <= self._patience_s
            and len(peer.tasks) < ITEMS_MAX
        )

    def _give(self, task: DispatchedRequest, peer: _Peer) -> None:
        handed_over = peer.role == "decode"
        task.attempt += 1
        name = f"{self._gateway}.{task.number}.{task.attempt}"
        request = Request(name, task.isl_tokens, task.osl_tokens, int(handed_over), prefilled=handed_over)
        self._owners.assign(name, peer.name, peer.incarnation)
        self._hold(peer, name, task)
        # A request that had to wait for a worker reaches it when the worker is there, not before.
        peer.outbox.append(Submission(request, max(task.due_ms, peer.ready_ms)))

    def _hold(self, peer: _Peer, name: str, task: DispatchedRequest) -> None:
        """The worker has it from now on."""
        if not peer.tasks:
            peer.heard_s = self._patience_s
        task.given_s = self._patience_s
        peer.tasks[name] = task
        peer.tokens += task.isl_tokens

    def _take(self, peer: _Peer, name: str) -> DispatchedRequest:
        """The worker has it no longer."""
        task = peer.tasks.pop(name)
        peer.tokens -= task.isl_tokens
        return task

    def _task_of(self, peer: _Peer, event: EngineEvent) -> DispatchedRequest | None:
        """The task that the event is about; with its end at this worker it is taken from it."""
        name = event.request_id
        if name not in peer.tasks:
            return None
        if event.kind == "preempted" or (event.kind == "first_token" and peer.role != "prefill"):
            return peer.tasks[name]
        self._owners.end(name)
        return self._take(peer, name)

    def _advance(self, task: DispatchedRequest, event: EngineEvent, peer: _Peer) -> None:
        if event.kind == "refused":
            self._served.refused += 1
        elif event.kind == "preempted":
            self._served.preempted += 1
        elif event.kind == "finished":
            self._finish(task, event.at_ms)
        else:
            # The user's first token stays the first one: what is computed again after a loss delays those that follow.
            task.first_token_ms = event.at_ms if task.first_token_ms is None else task.first_token_ms
            # A decode worker says it too, of a request that came to it without its cache; it has it already.
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
        self._served.finish(task.osl_tokens, first_ms - task.arrived_ms, itl_ms)

    def _lose(self, peer: _Peer, now_ms: float, names: Sequence[str] | None = None) -> None:
        """The worker does not have these requests (all, if none are named): they start again, before all others."""
        for name in reversed(list(peer.tasks) if names is None else names):
            task = self._take(peer, name)
            self._owners.end(name)
            task.due_ms = now_ms
            self._served.retried += 1
            self._waiting[self._roles[0]].appendleft(task)
        kept = {submission.request.request_id for submission in peer.outbox} & peer.tasks.keys()
        peer.outbox = [submission for submission in peer.outbox if submission.request.request_id in kept]

    def _forget(self) -> None:
        """Who is not in the registry and holds nothing is gone; a suspect stays, so that it is not tried at once."""
        for peer in list(self._peers.values()):
            if not peer.routable and not peer.tasks and peer.suspect_until_s <= self._patience_s:
                del self._peers[peer.name]


def _refuse(owner: RequestOwner | None) -> ClaimReply:
    return (
        ClaimReply(granted=False)
        if owner is None
        else ClaimReply(granted=False, worker=owner.worker, incarnation=owner.incarnation)
    )
