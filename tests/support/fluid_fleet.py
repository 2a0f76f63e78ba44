"""Fluid model of a fleet in virtual time: latencies follow from load and number of engines, without requests."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.step import Stepper
from loadline.wire.steps import StepInput, StepItem, StepOutput

ENGINE: Final = LinearKnobs(10.0, 0.2, 5.0, 0.05, max_kv_tokens=1e6)
"""A prompt of 1,000 tokens takes 55 ms; 200 requests decode in 50 ms."""
ISL, OSL = 1_000.0, 200.0
STEP_MS: Final = 1_000
_SLOWDOWN_MAX: Final = 10.0
"""Maximum ratio of the latency under overload to that without load; a fluid model has no queue lengths."""


class FluidFleet:
    """Prefill and decode pools and one frontend that report to an agent every second.

    Args:
        slower: Ratio of the real times of the engines to those of the profile.
        workers: Initial workers of each pool.
        start_s: Start-up time of a worker.
        knobs: Further settings of the model.
    """

    def __init__(self, slower: float = 1.0, workers: int = 2, start_s: int = 30, **knobs: Any) -> None:
        pools = tuple(PoolKnobs(role, role, replicas_max=99) for role in ("prefill", "decode"))
        profiles = {"m": {pool.name: EngineProfile(linear=ENGINE) for pool in pools}}
        self.stepper = Stepper(Settings("a", "all", (ModelKnobs("m", pools, **knobs),), profiles=profiles))
        self.outputs: list[StepOutput] = []
        self.counts: dict[str, list[int]] = {pool.name: [] for pool in pools}
        """Desired count of each pool by second."""
        self._slower = slower
        self._start_s = start_s
        self._second = 0
        self._fraction = 0.0
        self._started = 0
        self._starting: list[tuple[int, str]] = []
        self._workers: dict[str, list[str]] = {pool.name: [] for pool in pools}
        self._items: list[StepItem] = []
        for pool in pools:
            for _ in range(workers):
                self._begin(pool.name)

    def run(self, seconds: int, load: Callable[[int], float]) -> None:
        """Advance some seconds; ``load`` returns the request rate of each of them, counted from now."""
        for second in range(seconds):
            self._second += 1
            while self._starting and self._starting[0][0] <= self._second:
                self._begin(self._starting.pop(0)[1])
            self._report(load(second))
            self._apply(self.stepper.step(StepInput(self._second * STEP_MS, self._items)))

    def itl_ms(self, requests_per_s: float) -> float:
        """Return the ITL at the equilibrium batch size."""
        tokens_per_ms = requests_per_s * OSL / 1_000.0 / max(1, len(self._workers["decode"]))
        alone_ms, each_ms = ENGINE.alpha * self._slower, ENGINE.beta * self._slower
        return alone_ms * min(_SLOWDOWN_MAX, 1.0 / max(1.0 / _SLOWDOWN_MAX, 1.0 - tokens_per_ms * each_ms))

    def _begin(self, pool: str) -> None:
        self._started += 1
        name = f"{pool}-{self._started}"
        self._workers[pool].append(name)
        record = {"model": "m", "pool": pool, "worker": name, "role": pool, "incarnation": 1}
        self._items.append(StepItem(record=Raw(msgspec.json.encode(record))))

    def _report(self, requests_per_s: float) -> None:
        requests = int(requests_per_s + self._fraction)
        self._fraction += requests_per_s - requests
        for pool, names in self._workers.items():
            for name in names:
                samples = [{"sequence": self._second, "timestamp_ms": 0, "waiting_requests": 0, "kv_usage_ratio": 0.5}]
                self._publish(
                    f"load.m.{pool}.{name}",
                    {"model": "m", "pool": pool, "worker": name, "incarnation": 1, "samples": samples},
                )
        sample: dict[str, Any] = {"sequence": self._second, "interval_ms": STEP_MS, "arrivals": requests}
        if requests:
            latencies = {"ttft_ms": self._ttft_ms(requests_per_s), "itl_ms": self.itl_ms(requests_per_s)}
            sample |= {"completed": requests, "isl_tokens": ISL, "osl_tokens": OSL, **latencies}
        self._publish("traffic.m.f", {"model": "m", "frontend": "f", "incarnation": 1, "sample": sample})

    def _publish(self, subject: str, payload: dict[str, Any]) -> None:
        self._items.append(StepItem(subject=f"loadline.v1.{subject}", payload=Raw(msgspec.json.encode(payload))))

    def _ttft_ms(self, requests_per_s: float) -> float:
        """Return the TTFT with the mean wait of an M/D/1 queue (Pollaczek-Khinchine)."""
        service_ms = (ENGINE.gamma + ENGINE.delta * ISL) * self._slower
        busy = requests_per_s * service_ms / 1_000.0 / max(1, len(self._workers["prefill"]))
        return service_ms * (min(_SLOWDOWN_MAX, 1.0 + 0.5 * busy / (1.0 - busy)) if busy < 1.0 else _SLOWDOWN_MAX)

    def _apply(self, answer: StepOutput) -> None:
        self.outputs.append(answer)
        self._items = []
        for decision in answer.decisions:
            for target in decision.targets:
                starting = sum(pool == target.pool for _, pool in self._starting)
                missing = target.replicas - len(self._workers[target.pool]) - starting
                self._starting += [(self._second + self._start_s, target.pool)] * max(0, missing)
            fields = {name: getattr(decision, name) for name in ("decision_id", "model", "epoch", "sequence")}
            observed = {target.pool: target.replicas for target in decision.targets}
            self._publish("applied.m", fields | {"scaler": "flow", "status": "done", "observed": observed})
        for drain in answer.drains:
            self._workers[drain.pool].remove(drain.worker)
            names = {"model": "m", "pool": drain.pool, "worker": drain.worker, "incarnation": 1}
            self._publish(f"drained.{drain.worker}", names)
            self._items.append(StepItem(gone=drain.worker))
        for pool, counts in self.counts.items():
            desired = self.stepper.controller.state.fleet.models["m"].pools[pool].decided
            counts.append(len(self._workers[pool]) if desired is None else desired)
