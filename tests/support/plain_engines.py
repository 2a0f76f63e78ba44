"""Fleet of engines that export what a plain vLLM does: KV usage as a ratio, running and waiting requests, and means.

Queues and batches are fluid, and workers of a pool share them equally.
"""

import math
from typing import Final

import msgspec

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Role, WorkerPhase
from tests.support.fleet_harness import FleetHarness, reported

LINES: Final = LinearKnobs(10.0, 0.4, 5.0, 0.1, max_kv_tokens=36_000, max_batch_requests=64)
"""A batch of 64 decodes in 36 ms and fills the KV cache; a prompt takes 55 ms."""
ISL, OSL = 500.0, 100.0
CONTEXT: Final = ISL + OSL / 2
STEP_S: Final = 2
_SLICES: Final = 20
_VARIATION: Final = 0.2
"""Part of the request rate by which it swings each minute: no line follows from loads that are all the same."""
EXPORTED: Final = frozenset(
    [
        "sequence",
        "timestamp_ms",
        "kv_usage_ratio",
        "waiting_requests",
        "running_requests",
        "ttft_ms",
        "itl_ms",
        "isl_tokens",
    ]
)
"""Fields of a sample that follow from the metrics of a plain vLLM."""


class PlainEngines(FleetHarness):
    """Model ``m`` with one pool for each role.

    Args:
        roles: Roles of the pools.
        registers_cache: True if the records of workers have the blocks of their KV caches.
        profiled: True if the engines have profiles.
        reports_traffic: True if there is a frontend that reports.
    """

    def __init__(
        self, roles: tuple[Role, ...], *, registers_cache: bool, profiled: bool, reports_traffic: bool = True
    ) -> None:
        self._registers_cache, self._reports_traffic = registers_cache, reports_traffic
        super().__init__([PoolKnobs(role, role, replicas_max=16) for role in roles])
        self.waiting = dict.fromkeys(self.model.pools, 0.0)
        self.running = dict.fromkeys(self.model.pools, 0.0)
        self._fraction = 0.0
        for pool in self.model.pools.values():
            pool.set_decided(pool.ready, self.now)
            if profiled:
                pool.engine = EngineProfile(linear=LINES)

    def add_workers(self, name: str, count: int, state: WorkerPhase = "ready") -> None:
        """Register ``count`` more workers."""
        super().add_workers(name, count, state)
        if self._registers_cache:
            for worker in self.pool(name).workers.values():
                blocks = int(LINES.max_kv_tokens / 16)
                worker.record = msgspec.structs.replace(worker.record, kv_blocks_total=blocks, block_size_tokens=16)

    def serve(self, requests_per_s: float) -> None:
        """Advance some seconds at a request rate and report."""
        self._fraction += requests_per_s * STEP_S * (1.0 + _VARIATION * math.sin(self.sequence / 5))
        arrivals = int(self._fraction)
        self._fraction -= arrivals
        arriving, ttft_ms = float(arrivals), 0.0
        for role in self.model.pools:
            ttft_ms += self._wait_ms(role, arriving / STEP_S)
            arriving = self._flow(role, arriving)
        ttft_ms = (ttft_ms + self._pass_ms()) * (1.0 + 0.01 * (self.sequence % 7))  # no two means are equal
        self.now += STEP_S * 1_000
        self.sequence += 1
        itl_ms = self._itl_ms(list(self.model.pools)[-1])
        for role in self.model.pools:
            self._report(role, ttft_ms if role != "decode" else 0.0, itl_ms if role != "prefill" else 0.0)
        if self._reports_traffic:
            held = round(sum(self.waiting.values()) + sum(self.running.values()))
            sample = TrafficSample(
                self.sequence,
                STEP_S * 1_000,
                arrivals,
                round(arriving),
                in_flight=held,
                isl_tokens=ISL,
                osl_tokens=OSL,
                ttft_ms=ttft_ms,
                itl_ms=itl_ms,
            )
            self.model.traffic.ingest(TrafficReported("m", "f", 1, sample), self.now)

    @staticmethod
    def _pass_ms() -> float:
        return LINES.gamma + LINES.delta * ISL

    def _itl_ms(self, role: str) -> float:
        """Return the ITL at the present batch; prefill takes its share of the time of aggregated workers."""
        batch = self.running[role] / self.pool(role).ready
        return LINES.alpha + LINES.beta * batch + (batch / OSL * self._pass_ms() if role == "aggregated" else 0.0)

    def _rate(self, role: str) -> float:
        """Return the requests/s that a pool completes now."""
        if role == "prefill":
            return self.pool(role).ready * 1_000.0 / self._pass_ms()
        return self.running[role] * 1_000.0 / (OSL * self._itl_ms(role))

    def _wait_ms(self, role: str, requests_per_s: float) -> float:
        """Return the time in the queue, and that of an M/D/1 queue while a prefill pool keeps up."""
        busy = min(0.95, requests_per_s / self._rate(role)) if role == "prefill" else 0.0
        return self.waiting[role] / max(self._rate(role), 1e-9) * 1_000.0 + 0.5 * self._pass_ms() * busy / (1.0 - busy)

    def _flow(self, role: str, arriving: float) -> float:
        """Advance a pool; return the requests that it completed."""
        if role == "prefill":
            served = min(self.waiting[role] + arriving, self._rate(role) * STEP_S)
            self.waiting[role] += arriving - served
            self.running[role] = served * self._pass_ms() / 1_000.0 / STEP_S
            return served
        completed, slots = 0.0, self.pool(role).ready * LINES.max_batch_requests
        for _ in range(_SLICES):
            self.waiting[role] += arriving / _SLICES
            admitted = min(self.waiting[role], max(0.0, slots - self.running[role]))
            self.waiting[role] -= admitted
            self.running[role] += admitted
            done = min(self.running[role], self._rate(role) * STEP_S / _SLICES)
            self.running[role] -= done
            completed += done
        return completed

    def _report(self, role: str, ttft_ms: float, itl_ms: float) -> None:
        pool = self.pool(role)
        running, waiting = self.running[role] / pool.ready, self.waiting[role] / pool.ready
        context = ISL if role == "prefill" else CONTEXT
        for number, name in enumerate(pool.workers):
            busy = math.floor(
                running + (0.618 * (self.sequence + 3 * number)) % 1.0
            )  # a whole number, right on average
            sample = WorkerSample(
                self.sequence,
                0,
                kv_usage_ratio=min(1.0, running * context / LINES.max_kv_tokens),
                waiting_requests=round(waiting),
                running_requests=busy,
                ttft_ms=ttft_ms or None,
                itl_ms=itl_ms or None,
                isl_tokens=ISL if role != "decode" else None,
            )
            assert set(msgspec.to_builtins(sample)) <= EXPORTED
            self.fleet.ingest(reported(name, sample, pool=role), self.now)
