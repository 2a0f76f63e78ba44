"""Pools of the computed size against simulated engines, with Poisson arrivals and a fixed number of workers."""

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
from loadline.core.planning.sizing.profile.counts import Demand, Size, sizing
from loadline.core.planning.sizing.queueing.rates import worker_throughput
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from loadline.core.vocabulary.scalars import Role
from loadline.sim.engine import EngineKnobs, EngineTiming, Request, SimulatedEngine
from tests.support.fleet_harness import START, fleet_of

Draw = Callable[[random.Random], float]

ATTAINMENT = 0.95
_MEASURED = slice(0.3, 0.9)
"""Fraction of the requests that counts: batches fill before it and empty after it."""


class SizingCase(Struct, frozen=True):
    """Pool and its load and objectives."""

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
        """Settings of each engine."""
        return EngineKnobs(self.role, self.kv_blocks, max_batch_requests=256)


class SizingRequest(Struct, frozen=True):
    """Request with the cached tokens of its prompt."""

    at_ms: float
    isl_tokens: int
    osl_tokens: int
    cached_tokens: int


def fixed(tokens: int) -> Draw:
    """Return a constant length."""
    return lambda _rng: tokens


def spread(mean: float, cv: float, most: float) -> Draw:
    """Return lognormal lengths of at most ``most`` tokens."""
    sigma = float(np.sqrt(np.log1p(cv * cv)))
    return lambda rng: min(most, mean * float(np.exp(rng.gauss(0.0, sigma) - sigma * sigma / 2.0)))


def requests(case: SizingCase) -> list[SizingRequest]:
    """Draw the requests of a case, equal for every number of workers."""
    rng, at_ms, found = random.Random("sized"), 0.0, []
    for _ in range(case.count):
        at_ms += rng.expovariate(case.requests_per_s) * 1_000.0
        isl, osl = max(1, int(case.isl(rng))), max(2, int(case.osl(rng)))
        found.append(SizingRequest(at_ms, isl, osl, int(isl * case.hit_rate)))
    return found


def sized(case: SizingCase, requests_of_case: Sequence[SizingRequest]) -> Size:
    """Return the size by sizing, from the lengths that a frontend would report."""
    model, demand = _model_and_demand(case, requests_of_case)
    return sizing(model, demand)(1.0)["x"]


def queued(case: SizingCase, requests_of_case: Sequence[SizingRequest]) -> int:
    """Return the number of workers by the maximum rate of one worker as a queue."""
    model, demand = _model_and_demand(case, requests_of_case)
    one = worker_throughput(model.pools["x"], model.objectives, demand, demand.requests_per_s)
    return ceil(demand.requests_per_s / one.requests_per_s)


def _model_and_demand(case: SizingCase, requests_of_case: Sequence[SizingRequest]) -> tuple[Model, Demand]:
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
    isl, osl = (
        _reported([one.isl_tokens for one in requests_of_case]),
        _reported([one.osl_tokens for one in requests_of_case]),
    )
    return model, Demand(case.requests_per_s, isl, osl, ATTAINMENT, kv_hit_rate=case.hit_rate)


def _reported(tokens: Sequence[int]) -> LengthDistribution:
    interval = TrafficInterval()
    for one in tokens:
        interval.arrived(one)
    histogram = interval.sample(1, 1_000, queued=0, in_flight=0).isl_histogram
    mean = float(np.mean(tokens))
    found = lengths_from_histogram(histogram, mean) if histogram is not None and min(tokens) < max(tokens) else None
    return found or constant_length(mean)


def attained(case: SizingCase, requests_of_case: Sequence[SizingRequest], workers: int) -> float:
    """Return the fraction of requests within the objectives; each goes to the least loaded worker."""
    pool = _Workers(case, requests_of_case, workers)
    for number, one in enumerate(requests_of_case):
        pool.run(one.at_ms)
        pool.submit(number)
    pool.run(float("inf"))
    first, last = int(len(requests_of_case) * _MEASURED.start), int(len(requests_of_case) * _MEASURED.stop)
    return sum(pool.met[first:last]) / (last - first)


class _Workers:
    """Engines of one pool in virtual time."""

    def __init__(self, case: SizingCase, requests_of_case: Sequence[SizingRequest], workers: int) -> None:
        self._case, self._arriving = case, requests_of_case
        self._engines = [SimulatedEngine(case.knobs, case.timing) for _ in range(workers)]
        self._loads = [[0, 0] for _ in range(workers)]
        """Prompt tokens to compute and number of requests of each worker."""
        self._due: list[tuple[float, int]] = []
        self._planned: list[float | None] = [None] * workers
        self._first_ms: dict[int, float] = {}
        self.met = [False] * len(requests_of_case)

    def run(self, until_ms: float) -> None:
        """Advance the time."""
        while self._due and self._due[0][0] <= until_ms:
            at_ms, worker = heappop(self._due)
            if self._planned[worker] == at_ms:
                self._planned[worker] = None
                self._advance(worker, at_ms)

    def submit(self, number: int) -> None:
        """Submit a request to the least loaded worker; at a decode worker it has its KV cache."""
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
        self._advance(worker, one.at_ms)

    def _advance(self, worker: int, now_ms: float) -> None:
        for event in self._engines[worker].advance(now_ms):
            number = int(event.request_id)
            one = self._arriving[number]
            if event.kind == "first_token":
                self._first_ms[number] = event.at_ms
                self._loads[worker][0] -= one.isl_tokens - one.cached_tokens
            if event.kind == "finished" or (event.kind == "first_token" and self._case.role == "prefill"):
                self._loads[worker][1] -= 1
                self.met[number] = self._is_within_slo(number, event.at_ms)
        at_ms = self._engines[worker].next_event_ms()
        if at_ms is not None and at_ms != self._planned[worker]:
            heappush(self._due, (at_ms, worker))
        self._planned[worker] = at_ms

    def _is_within_slo(self, number: int, end_ms: float) -> bool:
        """Return whether the request met TTFT (prefill) and mean ITL (decode, including its wait)."""
        one = self._arriving[number]
        first_ms = self._first_ms.get(number, one.at_ms)
        itl_ms = (end_ms - first_ms) / (one.osl_tokens - 1)
        return first_ms - one.at_ms <= self._case.ttft_ms and itl_ms <= self._case.itl_ms
