"""Workers that a pool needs, by all that is known of it: demand, saturation, occupancy and backlog."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import inf
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.demand.arrival_rate import ArrivalRate
from loadline.core.planning.sizing.evidence.latency import KV_FULL, PoolEvidence
from loadline.core.planning.sizing.evidence.learned import EngineKind
from loadline.core.planning.sizing.need import ROUNDING, Need, whole
from loadline.core.planning.sizing.needs.backlog_workers import QueuedRequests, workers_for_backlog
from loadline.core.planning.sizing.needs.reversed_shrink import ReversedShrink
from loadline.core.planning.sizing.needs.shrink_hold import ShrinkHold
from loadline.core.planning.sizing.needs.unneeded_workers import UnneededWorkers
from loadline.core.planning.sizing.needs.unproven_shrink import UnprovenShrink
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.reasons import Reason, ReasonCode

SAMPLES: Final = (15, 60)
"""Seconds whose mean is the level of the arrivals, for growth and for shrinks."""
_SHRINK_MARGIN: Final = 1.1
"""Ratio of the workers that a shrink leaves to those needed: without it, one count alternates with the next."""
_BACKLOG_MIN: Final = 4
"""Waiting requests of a worker up to which it has no backlog, unless it serves more within TTFT."""
_BACKLOG_SHARE: Final = 0.5
"""Part of ``cost_of_miss`` that a request late behind a backlog counts: half of them are late with more workers too."""


class PoolState(Struct):
    """Evidence of a pool, and the hold of its shrinks."""

    kind: EngineKind
    is_inherited: bool = False
    """True if the evidence began with that of a predecessor."""
    evidence: PoolEvidence = field(default_factory=PoolEvidence)
    hold: ShrinkHold = field(default_factory=ShrinkHold)
    reversed_shrink: ReversedShrink = field(default_factory=ReversedShrink)
    unproven_shrink: UnprovenShrink = field(default_factory=UnprovenShrink)
    unneeded: UnneededWorkers = field(default_factory=UnneededWorkers)
    known_since_ms: int = -1
    """Time since which the capacity of a worker is known."""
    serves: float | None = None
    """Requests/s that a worker serves within the objectives, as of the last sample; 0 if unknown."""
    learned: float = 0.0
    """The same without regard to a profile."""
    is_by_prompts: bool = False
    """True if that follows from the time of the prompts, as the TTFT is late without load."""


class PoolNeeds(Struct):
    """Workers that a pool needs."""

    wanted: int
    """Count that all needs are met by."""
    keep: int
    """Count that a shrink leaves, with its margin."""
    lasting: float
    """Workers that are needed for longer than a backlog lasts, without the margin."""
    requests_per_s: float
    """Arrivals that last."""
    growing_per_s: float
    """Arrivals to grow for."""
    reason: Reason
    """Reason of ``wanted``."""
    without_backlog: int = 0
    """Count that all needs but the backlog are met by."""
    rising: int = 0
    """Count that a shrink leaves as the arrivals seem to rise, at most the present one; 0: they do not."""


LIGHT: Final = 0.5
"""Part of what a worker serves up to which its load is safe after a shrink."""
UNPROVEN_BY_ONE: Final = 1.25
"""Ratio to a load that was seen to be good up to which a shrink of one worker is safe."""


class PoolLoad(Struct, frozen=True, dict=True):
    """A pool, what is known of it, and the arrivals that it has to serve, in one plan."""

    model: Model
    pool: Pool
    state: PoolState
    arrivals: ArrivalRate
    lengths: Lengths
    growing_per_s: float
    """Requests/s to provide for when a worker requested now is ready, for growth; ``lasting_per_s`` is for shrinks.

    They are the arrivals, but for a decode pool: see BatchFlow.
    """
    lasting_per_s: float
    staying: float
    """Part (0..1) of the present requests that are still there then: so much of these rates is known, see BatchFlow."""
    serves: float
    """Requests/s that a worker serves within the objectives; 0 if unknown."""
    start_up_ms: int
    cost_of_miss: float
    """Cost of a late request in requests."""
    passed_on_per_s: float
    """Requests/s that prefill workers pass on to a decode pool, lately, while some have a backlog; 0 if none has."""
    now: int

    def needs(self) -> PoolNeeds:
        """Return the workers that the pool needs."""
        pool, serves = self.pool, self.serves
        steady = list(self._lasting_needs())
        needs = [*steady, *self._backlog_needs(steady)]
        largest = max(needs, key=lambda need: need.workers)
        current, wanted = pool.effective_target(self.now), whole(largest.workers)
        lasting = max(
            (need.workers for need in steady if need.reason.code is not ReasonCode.DEMAND_TARGET), default=0.0
        )
        if serves:
            lasting = max(lasting, self.lasting_per_s / serves)
        keep = whole(lasting * self.shrink_ratio) if serves else max(current, wanted)
        rising = min(current, self._rising()) if serves and keep < current else 0
        without_backlog = whole(max(need.workers for need in steady))
        rates = self.lasting_per_s, self.growing_per_s
        return PoolNeeds(wanted, keep, lasting, *rates, largest.reason, without_backlog, rising)

    @property
    def likely_growth(self) -> float:
        """Ratio by which the arrivals rise within a start-up time if they go on as they seem to; 1: they do not."""
        return self.arrivals.likely_growth(self.start_up_ms, SAMPLES[1], self.now)

    @property
    def capacity(self) -> float:
        """Work/s that a worker serves within the objectives; 0 if unknown."""
        return self.serves * self.lengths.expected_work(self.pool.knobs.role)

    @cached_property
    def proven_per_s(self) -> float:
        """Requests/s of a worker at which the pool was seen to be within the objectives; 0 if at none."""
        role, work = self.pool.knobs.role, self.lengths.expected_work(self.pool.knobs.role)
        return self.state.evidence.proven_rate(role, self.model.objectives) / work if work else 0.0

    @cached_property
    def promised_per_s(self) -> float:
        """Requests/s of a worker that the loads within the objectives promise, less the margin, or that were seen.

        What ``serves`` says may rely on overloads, and between them and those loads it is most in doubt. Infinite if a
        profile tells, for prefill, and while no load within the objectives is known.
        """
        role, work = self.pool.knobs.role, self.lengths.expected_work(self.pool.knobs.role)
        if not work or self.serves != self.state.learned:
            return inf
        extrapolated = self.state.evidence.extrapolated_rate(role, self.model.objectives) / work
        return max(self.proven_per_s, extrapolated / _SHRINK_MARGIN)

    @property
    def shrink_ratio(self) -> float:
        """Ratio of the workers that a shrink leaves to those needed: growth within the error would reverse it."""
        return _SHRINK_MARGIN + (1.0 - self.staying) * self.arrivals.error(SAMPLES[0])

    def by_chance(self, capacity_per_s: float, growing_per_s: float, lasting_per_s: float) -> bool:
        """Return True if arrivals exceed a capacity by no more than chance, and have done so for seconds only."""
        certain = growing_per_s * self.arrivals.certain(SAMPLES[0])
        return max(certain, lasting_per_s) <= capacity_per_s

    def _lasting_needs(self) -> Iterator[Need]:
        """Yield the needs by occupancy, saturation and demand."""
        pool, serves, rate = self.pool, self.serves, self.growing_per_s
        evidence, role = self.state.evidence, pool.knobs.role
        full = 0.0 if role == "prefill" else evidence.kv_workers(pool)
        yield Need(full / KV_FULL, Reason.of(ReasonCode.OCCUPANCY_TARGET, pool.name, full=full))
        saturated = self.saturated_need()
        if saturated is not None:
            yield saturated
        if serves and not (self.state.is_inherited and len(self.arrivals.at_ms) < SAMPLES[0]):  # one second is chance
            numbers = {"requests_per_s": rate, "serves": serves, "needed": rate / serves}
            workers_max = pool.effective_target(self.now) + ROUNDING
            is_chance = self.by_chance(workers_max * serves, rate, self.lasting_per_s)
            workers = min(rate / serves, workers_max) if is_chance else rate / serves
            yield Need(workers, Reason.of(ReasonCode.DEMAND_TARGET, pool.name, **numbers))

    def _rising(self) -> int:
        """Return the workers for the arrivals after a start-up if they go on to rise; 0: they do not rise."""
        growth = self.likely_growth
        return whole(growth * self.lasting_per_s / self.serves * self.shrink_ratio) if growth > 1.0 else 0

    def saturated_need(self) -> Need | None:
        """Return the need by what full workers complete, or take out of their queues; None if they are not full."""
        queues, rate = self.state.evidence.queues, self.growing_per_s
        found = None
        if self.pool.knobs.role != "prefill":
            found = queues.need(self.model, self.pool, self.lengths, rate, self.now)
        if found is None and not self.serves:
            found = queues.need_by_queues(self.model, self.pool, rate, self.now)
        return found

    def backlogged_workers(self) -> tuple[str, ...]:
        """Return the workers whose queue is a backlog: requests that join it are late, whatever others do."""
        if self.pool.load.waiting <= _BACKLOG_MIN:
            return ()  # so no worker has a backlog
        work, queues = self.lengths.work(self.pool.knobs.role), self.state.evidence.queues
        if not self.serves or not work or not queues.longest_queue:
            return ()
        backlog_min = self._backlog_min(self.serves_at_most(work))
        found = (name for name, one in self.pool.workers.items() if one.counted and one.load.waiting > backlog_min)
        return tuple(sorted(found))

    def serves_at_most(self, work: float) -> float:
        """Return the requests/s of so much work that a worker with a backlog serves."""
        role, objectives = self.pool.knobs.role, self.model.objectives
        return max(self.serves, self.state.evidence.throughput(role, objectives) / work)

    def _backlog_min(self, serves_at_most: float) -> float:
        """Return the requests of a worker up to which it has no backlog, as it serves them within TTFT."""
        within = serves_at_most * self.model.objectives.ttft_ms / 1_000.0
        return max(_BACKLOG_MIN, 0.0 if self.pool.knobs.role == "decode" else within)

    def needs_by_backlog(self) -> float | None:
        """Return the workers for a backlog; None if there is none."""
        found = next(self._backlog_needs(self._lasting_needs()), None)
        return None if found is None else found.workers

    def _backlog_needs(self, steady: Iterable[Need]) -> Iterator[Need]:
        """Yield the workers for a backlog, as long as it will be when a worker requested first is ready."""
        pool, rate, evidence = self.pool, self.growing_per_s, self.state.evidence
        work = self.lengths.work(pool.knobs.role)
        if not self.serves or not work or evidence.queues.longest_queue <= _BACKLOG_MIN:
            return
        full = self.serves_at_most(work)
        if evidence.queues.longest_queue <= self._backlog_min(full):
            return
        requested = pool.requested_at_ms
        left_ms = max(0, self.start_up_ms - (self.now - requested[0])) if requested else self.start_up_ms
        longer = max(0.0, rate / pool.ready - full) * left_ms / 1_000.0
        workers = workers_for_backlog(
            QueuedRequests(evidence.queues.longest_queue + longer, evidence.queues.behind),
            rate,
            full,
            needed=max(need.workers for need in steady) - ROUNDING,
            current=pool.effective_target(self.now),
            workers_max=pool.knobs.replicas_max,
            cost_of_late=_BACKLOG_SHARE * self.cost_of_miss / full,
        )
        waiting = {"waiting": pool.load.waiting, "behind": evidence.queues.behind, "ready": pool.ready}
        reason = Reason.of(ReasonCode.BACKLOG_TARGET, pool.name, requests_per_s=rate, **waiting)
        yield Need(float(workers), reason)
