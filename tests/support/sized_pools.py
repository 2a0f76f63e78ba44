"""Fleets as large as sizing says, held against simulated engines: Poisson requests, and the same workers throughout."""

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import ceil

import numpy as np
from msgspec import Struct

from loadline.client.traffic_interval import TrafficInterval
from loadline.core.engines.lengths import LengthDistribution, constant_length, lengths_from_histogram
from loadline.core.engines.profile import EngineProfile, ObjectiveKnobs
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.sizing_by_profile import Demand, Size, sizing
from loadline.core.planning.sizing.sizing_by_queue import worker_throughput
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from loadline.core.vocabulary.scalars import Role
from loadline.sim.engine import EngineKnobs, EngineTiming, Request, SimulatedEngine
from tests.support.fleet_harness import START, fleet_of

Draw = Callable[[random.Random], float]

ATTAINMENT = 0.95
_SETTLED = slice(0.3, 0.9)
"""Share of the requests that is looked at: before, the batches fill; after, they empty."""


class SizingCase(Struct, frozen=True):
    """A pool and what it is to serve."""

    role: Role
    profile: EngineProfile
    timing: EngineTiming
    requests_per_s: float
    isl: Draw
    osl: Draw
    ttft_ms: float = 500.0
    itl_ms: float = 50.0
    hit_rate: float = 0.0
    count: int = 6_000
    kv_blocks: int = 25_000

    @property
    def knobs(self) -> EngineKnobs:
        """Of each engine."""
        return EngineKnobs(self.role, self.kv_blocks, max_batch_requests=256)


class SizingRequest(Struct, frozen=True):
    """A request; the length of its prompt, and what a prefix cache has of it."""

    at_ms: float
    isl_tokens: int
    osl_tokens: int
    cached_tokens: int


def fixed(tokens: int) -> Draw:
    """All alike."""
    return lambda _luck: tokens


def spread(mean: float, cv: float, most: float) -> Draw:
    """Lognormal, none above ``most``."""
    sigma = float(np.sqrt(np.log1p(cv * cv)))
    return lambda rng: min(most, mean * float(np.exp(rng.gauss(0.0, sigma) - sigma * sigma / 2.0)))


def requests(case: SizingCase) -> list[SizingRequest]:
    """The same for every number of workers."""
    rng, at_ms, found = random.Random("sized"), 0.0, []
    for _ in range(case.count):
        at_ms += rng.expovariate(case.requests_per_s) * 1_000.0
        isl, osl = max(1, int(case.isl(rng))), max(2, int(case.osl(rng)))
        found.append(SizingRequest(at_ms, isl, osl, int(isl * case.hit_rate)))
    return found


def sized(case: SizingCase, arriving: Sequence[SizingRequest]) -> Size:
    """What the planner says, told what a frontend would report of these requests."""
    model, demand = _told(case, arriving)
    return sizing(model, demand)(1.0)["x"]


def queued(case: SizingCase, arriving: Sequence[SizingRequest]) -> int:
    """Workers by what one of them serves as a queue."""
    model, demand = _told(case, arriving)
    one = worker_throughput(model.pools["x"], model.objectives, demand, demand.requests_per_s)
    return ceil(demand.requests_per_s / one.requests_per_s)


def _told(case: SizingCase, arriving: Sequence[SizingRequest]) -> tuple[Model, Demand]:
    fleet = fleet_of(PoolKnobs("x", case.role, replicas_max=1_000))
    model, knobs = fleet.models["m"], case.knobs
    model.objectives, model.pools["x"].engine = ObjectiveKnobs(case.ttft_ms, case.itl_ms), case.profile
    record = WorkerRecord(
        "m",
        "x",
        "w",
        case.role,
        1,
        kv_blocks_total=knobs.kv_blocks_total,
        block_size_tokens=knobs.block_size_tokens,
        max_batch_requests=knobs.max_batch_requests,
        max_batched_tokens=knobs.max_batched_tokens,
    )
    fleet.register(RegisteredWorker(record, 1), START)
    isl, osl = _reported([one.isl_tokens for one in arriving]), _reported([one.osl_tokens for one in arriving])
    return model, Demand(case.requests_per_s, isl, osl, ATTAINMENT, kv_hit_rate=case.hit_rate)


def _reported(tokens: Sequence[int]) -> LengthDistribution:
    interval = TrafficInterval()
    for one in tokens:
        interval.arrived(one)
    histogram = interval.sample(1, 1_000, queued=0, in_flight=0).isl_histogram
    mean = float(np.mean(tokens))
    found = lengths_from_histogram(histogram, mean) if histogram is not None and min(tokens) < max(tokens) else None
    return found or constant_length(mean)


def attained(case: SizingCase, arriving: Sequence[SizingRequest], workers: int) -> float:
    """Share of the requests that so many workers serve within the objectives; each goes to the least loaded one."""
    pool = _Workers(case, arriving, workers)
    for number, one in enumerate(arriving):
        pool.run(one.at_ms)
        pool.submit(number)
    pool.run(float("inf"))
    first, last = int(len(arriving) * _SETTLED.start), int(len(arriving) * _SETTLED.stop)
    return sum(pool.met[first:last]) / (last - first)


class _Workers:
    """Engines side by side in virtual time."""

    def __init__(self, case: SizingCase, arriving: Sequence[SizingRequest], workers: int) -> None:
        self._case, self._arriving = case, arriving
        self._engines = [SimulatedEngine(case.knobs, case.timing) for _ in range(workers)]
        self._loads = [[0, 0] for _ in range(workers)]
        """Prompt tokens to compute and requests of each."""
        self._due: list[tuple[float, int]] = []
        self._planned: list[float | None] = [None] * workers
        self._first_ms: dict[int, float] = {}
        self.met = [False] * len(arriving)

    def run(self, until_ms: float) -> None:
        """Let time pass."""
        while self._due and self._due[0][0] <= until_ms:
            at_ms, worker = heappop(self._due)
            if self._planned[worker] == at_ms:
                self._planned[worker] = None
                self._go_on(worker, at_ms)

    def submit(self, number: int) -> None:
        """A request arrives: a prompt, or, at a decode worker, with its cache."""
        one, decode = self._arriving[number], self._case.role == "decode"
        worker = self._loads.index(min(self._loads))
        self._loads[worker][1] += 1
        self._loads[worker][0] += 0 if decode else one.isl_tokens - one.cached_tokens
        request = Request(
            str(number),
            one.isl_tokens,
            one.osl_tokens,
            int(decode),
            prefilled=decode,
            cached_tokens=0 if decode else one.cached_tokens,
        )
        self._engines[worker].submit(request, one.at_ms)
        self._go_on(worker, one.at_ms)

    def _go_on(self, worker: int, now_ms: float) -> None:
        for event in self._engines[worker].advance(now_ms):
            number = int(event.request_id)
            one = self._arriving[number]
            if event.kind == "first_token":
                self._first_ms[number] = event.at_ms
                self._loads[worker][0] -= one.isl_tokens - one.cached_tokens
            if event.kind == "finished" or (event.kind == "first_token" and self._case.role == "prefill"):
                self._loads[worker][1] -= 1
                self.met[number] = self._in_time(number, event.at_ms)
        at_ms = self._engines[worker].next_event_ms()
        if at_ms is not None and at_ms != self._planned[worker]:
            heappush(self._due, (at_ms, worker))
        self._planned[worker] = at_ms

    def _in_time(self, number: int, end_ms: float) -> bool:
        """TTFT where there is prefill, the mean ITL where there is decode; what waits to decode waits in its ITL."""
        one = self._arriving[number]
        first_ms = self._first_ms.get(number, one.at_ms)
        itl_ms = (end_ms - first_ms) / (one.osl_tokens - 1)
        return first_ms - one.at_ms <= self._case.ttft_ms and itl_ms <= self._case.itl_ms
