"""Drains of workers, from the first command to the empty worker.

    held --a scaler accepts--> commanded --accepted--> draining --WorkerDrained--> drained
     |                            |                       |--- TTL or silence ---> overdue | died
     |                            +--refused or no answer: commanded again; after `revoke_after` attempts the key is
     |                               removed
     +--decision refused or expired: cancelled

Victims are selected once, with a decision that names them, so that a new leader resumes the same drains.
"""

from collections import Counter
from collections.abc import Container
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from loadline.core.fleet.fleet import Fleet
from loadline.core.fleet.moved_workers import home_of
from loadline.core.fleet.pool import DRAINS_MAX
from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.effects import Effect, RaiseAlarm, RemoveWorker, SendDrain
from loadline.core.vocabulary.events import DrainAnswered, WorkerDrained
from loadline.core.vocabulary.rejections import Rejection

FINISHED_DRAINS_MAX = 256
"""Number of finished drains that are kept."""
CHECK_INTERVAL_MS = 1_000
"""Interval of checks for draining workers that died or became silent."""


class DrainKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of drains."""

    ttl_ms: Annotated[int, Meta(ge=1, description="Time that a worker has to drain.")] = 600_000
    retry_ms: Annotated[
        int, Meta(ge=1, description="Time between two drain commands to a worker that does not answer.")
    ] = 2_000
    revoke_after: Annotated[
        int, Meta(ge=1, description="Unanswered drain commands after which the key of a worker is removed.")
    ] = 3


Ending = Literal["drained", "died", "overdue"]


class Drain(Struct):
    """Drain of one worker. Times are in Unix ms."""

    drain_id: str
    model: str
    pool: str
    worker: str
    home: str
    """Pool whose scaler started the worker, and ends it."""
    incarnation: int
    lease_id: int
    """Lease of the worker's key at the last check."""
    started_at_ms: int
    deadline_ms: int
    held: bool = False
    """True until a scaler has accepted the decision: no command is sent, and the worker serves."""
    accepted: bool = False
    unanswered: int = 0
    command_at_ms: int = 0
    """Time of the next drain command."""
    check_at_ms: int = 0
    """Time of the next check."""
    key_removed: bool = False
    """True once the key was removed, since commands were not accepted."""


class FinishedDrain(Struct, frozen=True):
    """A drain that ended."""

    worker: str
    ending: Ending
    took_ms: int


class Drains(Struct):
    """Open and finished drains of the fleet."""

    knobs: DrainKnobs
    open: dict[str, Drain] = field(default_factory=dict)
    finished: list[FinishedDrain] = field(default_factory=list)

    def started_in(self, model: str, pool: str) -> list[Victim]:
        """Return the draining workers that the scaler of a pool started, by name."""
        drains = (d for d in self.open.values() if d.model == model and d.home == pool)
        return [Victim(d.worker, d.incarnation) for d in sorted(drains, key=lambda d: d.worker)]

    def counts(self, model: str) -> dict[str, int]:
        """Count the draining workers of a model by pool; one that has moved counts in both pools."""
        if not self.open:
            return {}
        drains = (drain for drain in self.open.values() if drain.model == model)
        return Counter(pool for drain in drains for pool in {drain.pool: None, drain.home: None})

    def start(  # noqa: PLR0917 - one argument for each fact
        self,
        fleet: Fleet,
        model: str,
        pool_name: str,
        victim: Victim,
        drain_id: str,
        now: int,
        *,
        again: bool = False,
        held: bool = False,
    ) -> Rejection | None:
        """Start the drain of a worker, or hold it until ``begin_held``.

        A drain that has begun continues; an ended one starts only with ``again``. One that is held starts anew, since
        its worker may have registered again meanwhile.
        """
        name = victim.worker
        pool = fleet.find_pool(model, pool_name)
        if isinstance(pool, Rejection):
            return pool
        worker = pool.workers.get(name)
        if worker is None:
            return Rejection.UNKNOWN_WORKER
        if worker.record.incarnation != victim.incarnation:
            return Rejection.UNKNOWN_INCARNATION
        if worker.drain_ended and not (again or worker.drain_handed_over):
            return None
        known = self.open.get(_key(model, pool_name, name))
        if known is not None and not known.held:
            if known.incarnation == victim.incarnation:
                if not worker.draining:  # another incarnation held its key meanwhile
                    fleet.start_drain(model, pool_name, name, now)
                return None
            self._finish(known, "died", fleet, now)  # the name belongs to a new incarnation
        self.open[_key(model, pool_name, name)] = Drain(
            drain_id=drain_id,
            model=model,
            pool=pool_name,
            worker=name,
            home=home_of(fleet.models[model].pools, worker),
            incarnation=worker.record.incarnation,
            lease_id=worker.lease_id,
            started_at_ms=now,
            deadline_ms=now + self.knobs.ttl_ms,
            held=held,
            command_at_ms=now,
        )
        fleet.start_drain(model, pool_name, name, now, held=held)
        return None

    def move(self, model: str, former: str, pool: str, worker: str) -> None:
        """Continue the drain of a worker that registered in another pool."""
        drain = self.open.pop(_key(model, former, worker), None)
        if drain is not None:
            drain.pool = pool
            self.open[_key(model, pool, worker)] = drain

    def held(self, model: str) -> dict[str, Drain]:
        """Return the held drains of a model by key."""
        return {key: drain for key, drain in self.open.items() if drain.held and drain.model == model}

    def begin_held(self, model: str, fleet: Fleet, now: int) -> bool:
        """Begin the held drains of a model, whose decision a scaler has accepted; return True if there were any."""
        held = self.held(model)
        for drain in held.values():
            drain.held, drain.started_at_ms, drain.command_at_ms = False, now, now
            drain.deadline_ms = now + self.knobs.ttl_ms
            fleet.begin_drain(drain.model, drain.pool, drain.worker, now)
        return bool(held)

    def cancel_held(self, model: str, fleet: Fleet, now: int, named: Container[Victim] = ()) -> None:
        """Cancel the held drains of a model, except of workers that its decision in force has ``named``."""
        for key, drain in self.held(model).items():
            if Victim(drain.worker, drain.incarnation) not in named:
                del self.open[key]
                fleet.cancel_drain(drain.model, drain.pool, drain.worker, now)

    def record_answer(self, event: DrainAnswered, bus_connected: bool, now: int) -> list[Effect]:  # noqa: FBT001 - a fact
        """Record an answer or its absence; an absence does not count while the bus is disconnected."""
        drain = self.open.get(_key(event.model, event.pool, event.worker))
        if drain is None or drain.drain_id != event.drain_id or drain.accepted or drain.held:
            return []
        if event.accepted:
            drain.accepted = True
            return []
        drain.command_at_ms = now + self.knobs.retry_ms
        if not bus_connected:
            return []
        drain.unanswered += 1
        if event.accepted is False and drain.unanswered == 1:
            return [RaiseAlarm("drain_refused", drain.model, f"{drain.worker} refused to drain: {event.detail}")]
        if drain.unanswered >= self.knobs.revoke_after and not drain.key_removed:
            drain.key_removed = True
            text = f"{drain.worker} did not accept {drain.unanswered} drain commands: its key is removed"
            return [_remove_key(drain), RaiseAlarm("drain_unanswered", drain.model, text)]
        return []

    def record_drained(self, event: WorkerDrained, fleet: Fleet, now: int) -> Rejection | None:
        """Finish the drain of a worker that reported that it is empty."""
        drain = self.open.get(_key(event.model, event.pool, event.worker))
        if drain is None or drain.incarnation != event.incarnation:
            return Rejection.UNKNOWN_DRAIN
        self._finish(drain, "drained", fleet, now)
        return None

    def tick(self, fleet: Fleet, epoch: int, listening_since_ms: int | None, now: int) -> list[Effect]:
        """Send drain commands that are due; close drains of workers that died or are overdue.

        Of each pool, at most ``DRAINS_MAX`` drains are commanded before an answer or a removal; the rest wait.

        Args:
            fleet: The fleet.
            epoch: Epoch of the leader, for the commands.
            listening_since_ms: Time since which the agent receives reports; None while it does not. Silence before it
                means nothing.
            now: Unix time in ms.
        """
        effects: list[Effect] = []
        unanswered: Counter[tuple[str, str]] = Counter()
        for drain in self._begun(fleet):
            drain.check_at_ms = now + CHECK_INTERVAL_MS
            worker = fleet.models[drain.model].pools[drain.pool].workers.get(drain.worker)
            if worker is None or worker.record.incarnation != drain.incarnation:
                self._finish(drain, "died", fleet, now)
                continue
            drain.lease_id = worker.lease_id  # another one if its key was written again
            if now >= drain.deadline_ms:
                if worker.registered:
                    effects.append(_remove_key(drain))
                self._finish(drain, "overdue", fleet, now)
                text = f"{drain.worker} was not empty after {now - drain.started_at_ms} ms"
                effects.append(RaiseAlarm("drain_overdue", drain.model, text))
            elif self._silent(worker, drain, now - fleet.knobs.stale_after_ms, listening_since_ms):
                self._finish(drain, "died", fleet, now)
                text = f"{drain.worker} became silent while it was draining"
                effects.append(RaiseAlarm("drain_died", drain.model, text))
            elif not drain.accepted:
                pool = drain.model, drain.pool
                if unanswered[pool] >= DRAINS_MAX:  # it waits, so that one decision cannot remove thousands
                    drain.command_at_ms = drain.check_at_ms
                elif now >= drain.command_at_ms:
                    # The answer or its absence schedules the next command; this time covers the loss of that event.
                    drain.command_at_ms = now + 5 * self.knobs.retry_ms
                    if listening_since_ms is not None:
                        effects.append(self._command(drain, worker, epoch, now))
                    else:
                        drain.command_at_ms = now + self.knobs.retry_ms
                unanswered[pool] += not drain.key_removed
        return effects

    def next_wake(self) -> int | None:
        """Return the time at which ``tick`` is next due; None without open drains."""
        begun = (drain for drain in self.open.values() if not drain.held)
        wakes = (d.check_at_ms if d.accepted else min(d.check_at_ms, d.command_at_ms) for d in begun)
        return min(wakes, default=None)

    def abandon(self, fleet: Fleet, now: int) -> None:
        """Leave all drains to the next leader, which resumes those of victims that decisions name.

        A worker that has accepted continues to drain; one that has not counts as a normal worker until the next leader
        commands it.
        """
        for drain in self.open.values():
            end = fleet.hand_over_drain if drain.accepted else fleet.cancel_drain
            end(drain.model, drain.pool, drain.worker, now)
        self.open.clear()

    def remove_unconfigured(self, fleet: Fleet) -> None:
        """Remove drains of workers whose pool is no longer configured."""
        self.open = {
            key: drain
            for key, drain in self.open.items()
            if not isinstance(fleet.find_pool(drain.model, drain.pool), Rejection)
        }

    @staticmethod
    def _silent(worker: WorkerState, drain: Drain, since_ms: int, listening_since_ms: int | None) -> bool:
        """Return True if a worker has neither a lease nor a load report since ``since_ms``."""
        if listening_since_ms is None:
            return False
        return not worker.registered and max(worker.seen_at_ms, drain.started_at_ms, listening_since_ms) < since_ms

    @staticmethod
    def _command(drain: Drain, worker: WorkerState, epoch: int, now: int) -> SendDrain:
        return SendDrain(
            model=drain.model,
            pool=drain.pool,
            worker=drain.worker,
            role=worker.record.role,
            incarnation=drain.incarnation,
            drain_id=drain.drain_id,
            epoch=epoch,
            ttl_ms=drain.deadline_ms - now,
        )

    def _begun(self, fleet: Fleet) -> list[Drain]:
        """Return the drains that are not held; drop the held ones whose worker is gone."""
        for key, drain in list(self.open.items()):
            worker = fleet.models[drain.model].pools[drain.pool].workers.get(drain.worker)
            if drain.held and (worker is None or worker.record.incarnation != drain.incarnation):
                del self.open[key]
        return [drain for drain in self.open.values() if not drain.held]

    def _finish(self, drain: Drain, ending: Ending, fleet: Fleet, now: int) -> None:
        del self.open[_key(drain.model, drain.pool, drain.worker)]
        self.finished.append(FinishedDrain(drain.worker, ending, now - drain.started_at_ms))
        del self.finished[:-FINISHED_DRAINS_MAX]
        fleet.end_drain(drain.model, drain.pool, drain.worker, now)


def _remove_key(drain: Drain) -> RemoveWorker:
    return RemoveWorker(drain.model, drain.pool, drain.worker, drain.lease_id)


def _key(model: str, pool: str, worker: str) -> str:
    return f"{model}\0{pool}\0{worker}"
