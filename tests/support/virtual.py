"""Virtual time, luck from a seed, and a store in both."""

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from loadline.core import events as ev
from loadline.core.effects import Campaign, CommitDecision, ReadDecisions, RenewLease
from loadline.core.observed import RegisteredWorker, WorkerRecord
from loadline.core.targets import Decision, StoredDecision

LEASE_MS = 10_000


class Timeline:
    """What is to be done and when; of things at the same time, what was planned first comes first."""

    def __init__(self, seed: int, now: int) -> None:
        self.rng = random.Random(seed)
        self.now = now
        self.calm = False
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def at(self, time: int, do: Callable[[], object]) -> None:
        """Do it then."""
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, do))

    def after(self, wait_ms: int, do: Callable[[], object]) -> None:
        """Do it after a while."""
        self.at(self.now + wait_ms, do)

    def chance(self, probability: float) -> bool:
        """Whether something goes wrong; nothing does when all is calm."""
        return not self.calm and self.rng.random() < probability

    def run(self, until: int) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        self.now = until


class Follower(Protocol):
    """Who follows the store: an agent."""

    registry_at: int
    """When it heard of the last change: changes do not overtake each other."""

    def put(self, event: ev.AnyEvent) -> None:
        """Hear of a change."""


class Store:
    """Keys under leases, compare-and-set, and a stream of changes to every agent, in order."""

    def __init__(self, time: Timeline, followers: Sequence[Follower]) -> None:
        self.time, self.followers = time, followers
        self.up = True
        self.revision = 10
        self.leader: tuple[str, int, int] | None = None  # name, epoch, lease
        self.decisions: dict[str, StoredDecision] = {}
        self.history: list[Decision] = []
        self.workers: dict[tuple[str, str, str], RegisteredWorker] = {}
        self.leases: dict[int, int] = {}  # when each ends

    def grant(self, ttl_ms: int) -> int:
        self.revision += 1
        self.leases[self.revision] = self.time.now + ttl_ms
        return self.revision

    def keep(self, lease: int, ttl_ms: int = LEASE_MS) -> bool | None:
        """Extend a lease; None when the store cannot be reached."""
        if not self.up:
            return None
        if lease in self.leases:
            self.leases[lease] = self.time.now + ttl_ms
        return lease in self.leases

    def revoke(self, lease: int) -> None:
        if self.up and self.leases.pop(lease, None) is not None:
            self.revision += 1
            if self.leader is not None and self.leader[2] == lease:
                self.leader = None
                self.tell(ev.LeaderChanged("all", "", 0, self.revision))
            for identity in [i for i, registered in self.workers.items() if registered.lease_id == lease]:
                del self.workers[identity]
                self.tell(ev.WorkerDeregistered(*identity))

    def expire(self) -> None:
        """What the store does by itself; a store that comes back may give leases more time, never less."""
        self.time.after(500, self.expire)
        for lease in [lease for lease, end in self.leases.items() if end <= self.time.now]:
            self.revoke(lease)

    def put_worker(self, worker: WorkerRecord, lease: int) -> int:
        """Write a worker's record under its lease, or under a new one; gives that, 0 when the store is away."""
        if not self.up:
            return 0
        lease = lease if lease in self.leases else self.grant(LEASE_MS)
        registered = RegisteredWorker(worker, lease)
        self.workers[worker.model, worker.pool, worker.worker] = registered
        self.tell(ev.WorkerRegistered(registered))
        return lease

    def tell(self, event: ev.AnyEvent) -> None:
        """To every agent, after a delay, in the order of the store."""
        for follower in self.followers:
            self._tell(follower, [event])

    def _tell(self, follower: Follower, events: Iterable[ev.AnyEvent]) -> None:
        follower.registry_at = max(follower.registry_at, self.time.now + self.time.rng.randint(1, 80))
        for event in events:
            self.time.at(follower.registry_at, partial(follower.put, event))

    def show(self, follower: Follower) -> None:
        """A snapshot, as at the begin of a stream."""
        name, epoch, _ = self.leader or ("", 0, 0)
        leader = ev.LeaderChanged("all", name, epoch, self.revision)
        registry = ev.RegistryRead([self.workers[identity] for identity in sorted(self.workers)])
        self._tell(follower, [ev.StoreConnectionChanged(connected=True), leader, ev.PausesRead({}), registry])

    def campaign(self, effect: Campaign, name: str) -> ev.AnyEvent:
        if not self.up or self.leader is not None:
            return ev.CampaignLost(effect.scope, self.leader[0] if self.up and self.leader else "")
        lease = self.grant(effect.ttl_s * 1_000)
        self.revision += 1
        self.leader = (name, self.revision, lease)
        self.tell(ev.LeaderChanged("all", name, self.revision, self.revision))
        return ev.LeadershipWon(effect.scope, self.revision, lease, effect.asked_at_ms)

    def renew(self, effect: RenewLease, ttl_ms: int) -> ev.AnyEvent:
        kept = self.keep(effect.lease_id, ttl_ms)
        if kept:
            return ev.LeaseRenewed(effect.scope, effect.lease_id, effect.asked_at_ms)
        return ev.LeaseRenewalFailed(effect.scope, effect.lease_id, lost=kept is False)

    def commit(self, effect: CommitDecision) -> ev.AnyEvent:
        decision = effect.decision
        if not self.up:
            return ev.CommitRefused(decision.decision_id, decision.model, fenced=False)
        known = self.decisions.get(decision.model)
        if (
            self.leader is None
            or self.leader[1] != decision.epoch
            or (known.revision if known else 0) != effect.expected_revision
        ):
            return ev.CommitRefused(decision.decision_id, decision.model, fenced=True)
        self.revision += 1
        self.decisions[decision.model] = StoredDecision(decision, self.revision)
        self.history.append(decision)
        return ev.DecisionCommitted(decision.decision_id, decision.model, self.revision)

    def read(self, effect: ReadDecisions) -> ev.AnyEvent:
        if not self.up:
            return ev.DecisionsUnread(effect.request, "away")
        return ev.DecisionsRead(effect.request, list(self.decisions.values()), self.revision)
