"""External simulator for ``loadline step``: workers that serve four requests per second each."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.wire.steps import StepInput, StepItem, StepOutput

TOML = """
[[models]]
name = "llama"
planner = "saturation"
[[models.pools]]
name = "engine"
role = "aggregated"
replicas_max = 6
"""


def settings(**knobs: Any) -> Settings:
    model = ModelKnobs(
        "llama",
        (PoolKnobs("engine", "aggregated", replicas_max=6),),
        planner="saturation",
        guardrails=GuardrailKnobs(**knobs),
    )
    return Settings("agent-1", "all", (model,))


def frame(subject: str, payload: dict[str, Any]) -> StepItem:
    return StepItem(subject=f"loadline.v1.{subject}", payload=Raw(msgspec.json.encode(payload)))


def record(worker: str, incarnation: int = 1, **fields: Any) -> StepItem:
    names = {"model": "llama", "pool": "engine", "worker": worker, "role": "aggregated", "incarnation": incarnation}
    return StepItem(record=Raw(msgspec.json.encode(names | fields)))


def load(worker: str, sequence: int, incarnation: int = 1, **sample: Any) -> StepItem:
    samples = [{"sequence": sequence, "timestamp_ms": 0, "waiting_requests": 0, "kv_usage_ratio": 0.7} | sample]
    names = {"model": "llama", "pool": "engine", "worker": worker, "incarnation": incarnation}
    return frame(f"load.llama.engine.{worker}", names | {"samples": samples})


class StepSimulator:
    """Simulator that starts with one worker; the load is low, high from 60 s to 300 s, and low again.

    Args:
        agent: Returns the output of a step.
        start_ms: Start of its time.
    """

    def __init__(self, agent: Callable[[StepInput], StepOutput], start_ms: int = 0) -> None:
        self.inputs: list[StepInput] = []
        self.outputs: list[StepOutput] = []
        self._agent = agent
        self._start_ms = start_ms
        self._started = 0
        self._waiting: dict[str, int] = {}
        self._draining: list[str] = []
        self._items: list[StepItem] = []

    def run(self, seconds: int) -> None:
        self._start_worker()
        for second in range(seconds):
            self._serve(14 if 60 <= second < 300 else 2, second)
            given = StepInput(self._start_ms + second * 1_000, self._items)
            self._items = []
            self.inputs.append(given)
            self._apply(self._agent(given))

    def _start_worker(self) -> None:
        self._started += 1
        self._waiting[f"w{self._started}"] = 0
        self._items.append(record(f"w{self._started}"))

    def _serve(self, arrivals: int, second: int) -> None:
        for _ in range(arrivals):
            candidates = (name for name in self._waiting if name not in self._draining)
            self._waiting[min(candidates, key=self._waiting.__getitem__)] += 1
        for name, waiting in list(self._waiting.items()):
            running = min(4, waiting)
            self._waiting[name] -= running
            left: dict[str, Any] = {
                "waiting_requests": waiting - running,
                "running_requests": running,
                "kv_usage_ratio": running / 4,
            }
            self._items.append(load(name, second, **left))
            if name in self._draining and waiting == running:
                names = {"model": "llama", "pool": "engine", "worker": name, "incarnation": 1}
                self._items += [frame(f"drained.{name}", names), StepItem(gone=name)]
                self._draining.remove(name)
                del self._waiting[name]

    def _apply(self, answer: StepOutput) -> None:
        self.outputs.append(answer)
        for decision in answer.decisions:
            replicas = decision.targets[0].replicas
            for _ in range(replicas - len(self._waiting) + len(self._draining)):
                self._start_worker()
            fields = {name: getattr(decision, name) for name in ("decision_id", "model", "epoch", "sequence")}
            done = {"scaler": "simulator", "status": "done", "observed": {"engine": replicas}}
            self._items.append(frame("applied.llama", fields | done))
        self._draining += [drain.worker for drain in answer.drains]


def replicas(answers: Sequence[StepOutput]) -> list[int]:
    return [decision.targets[0].replicas for answer in answers for decision in answer.decisions]
