"""Time of a scrape of /metrics with 100 models of 10 pools each, by planner: its status and its text, in CPU time.

All workers and frontends have reported once a second for 45 s, and forecasts are answered. ``kB`` is the size of the
text, and ``turns`` the CPU time in ms of all turns of a second. The baseline is the planner ``static``, which estimates
nothing.

  python -m tools.bench.scrape [--quick]
"""

import itertools
import time
from collections.abc import Iterator
from typing import Final

from loadline.adapters import garbage
from loadline.adapters.metrics import Metrics
from loadline.core.controller import Controller
from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.queries.status import status
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import AnyEvent, ForecastFitted, LoadReported, TrafficReported
from loadline.core.vocabulary.forecasts import ForecastKnobs
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from tools.bench.harness import options, percentile, progress, result
from tools.bench.leader import answers, leading_controller, renewal

PLANNERS: Final = ("auto", "queueing")
MODELS: Final = tuple(f"model-{number:03}" for number in range(100))
ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")
POOLS: Final[tuple[tuple[str, Role], ...]] = tuple((f"{role}-{number}", role) for role in ROLES for number in range(5))
WORKERS: Final = 2
SECONDS: Final = 45
SPACING_MS: Final = 2
BATCH: Final = 500
"""Events of a turn; the default of ``runtime.batch_max``."""
START_MS: Final = 1_700_000_000_000
ENGINE: Final = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=1e6, max_batch_requests=1_000))


def controller(planner: str) -> Controller:
    """Return the controller of a leader whose workers have registered."""
    pools = tuple(PoolKnobs(name, role, replicas_max=16) for name, role in POOLS)
    knobs = {"queueing": QueueingKnobs(10_000, forecast=ForecastKnobs("constant"))}
    models = tuple(ModelKnobs(name, pools, planner=planner, planner_knobs=knobs) for name in MODELS)
    profiles = {name: {pool: ENGINE for pool, _ in POOLS} for name in MODELS}
    workers = [
        WorkerRecord(model, pool, f"{pool}-{number}", role, 1)
        for model in MODELS
        for pool, role in POOLS
        for number in range(WORKERS)
    ]
    return leading_controller(Settings("bench", "all", models, profiles=profiles), workers, START_MS)


def reports(sequence: int) -> Iterator[AnyEvent]:
    """Yield a report of every frontend and worker."""
    for model in MODELS:
        traffic = TrafficSample(
            sequence, 1_000, 40, 40, 0, 20, 500.0, None, 100.0, ttft_ms=60.0, itl_ms=15.0, ttft_met=39, itl_met=38
        )
        yield TrafficReported(model, "frontend", 1, traffic)
        for pool, _ in POOLS:
            for number in range(WORKERS):
                sample = WorkerSample(sequence, 0, kv_usage_ratio=0.3, waiting_requests=0, running_requests=5)
                yield LoadReported(model, pool, f"{pool}-{number}", 1, [sample])


def measure(planner: str) -> tuple[list[float], list[float], float]:
    """Return the times of scrapes and of the turns of seconds, in ms, and the size of a scrape in kB."""
    agent, metrics, answered = controller(planner), Metrics(dict, "0"), list[ForecastFitted]()
    garbage.configure()
    scrapes_ms: list[float] = []
    turns_ms: list[float] = []
    size = 0
    for second in range(1, SECONDS + 1):
        now, caused, took_s = START_MS + 1_000 * second, list[AnyEffect](), 0.0
        events = [renewal(agent, now), *answered, *reports(second)]
        for turn in itertools.count():
            batch, at_ms = events[turn * BATCH : (turn + 1) * BATCH], now + turn * SPACING_MS
            wake_ms = agent.next_wake()
            if not batch and (wake_ms is None or wake_ms > at_ms):
                break
            began_s = time.thread_time()
            effects = agent.handle(batch, at_ms)
            took_s += time.thread_time() - began_s
            caused += effects
        answered = answers(caused)
        if second > SECONDS // 2:
            turns_ms.append(took_s * 1e3)
            began_s = time.thread_time()
            text = b"".join(metrics.render(status(agent.settings, agent.state, "0", 0, now, agent.planners)))
            scrapes_ms.append((time.thread_time() - began_s) * 1e3)
            size = len(text)
    return scrapes_ms, turns_ms, size / 1e3


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 1 if options(__doc__) else 3
    baseline: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in PLANNERS}
    more: dict[str, dict[str, float]] = {}
    for number in range(1, rounds + 1):
        baseline.append(percentile(measure("static")[0], 0.5))
        for name in PLANNERS:
            scrapes, turns, size = measure(name)
            found[name].append(percentile(scrapes, 0.5))
            more[name] = {"turns": round(percentile(turns, 0.5), 1), "kB": round(size)}
        text = ", ".join(f"{name} {values[-1]:.0f} ms" for name, values in found.items())
        progress(f"round {number}/{rounds}: {text}; static {baseline[-1]:.0f} ms")
    for name, values in found.items():
        result(f"scrape_{name}", "ms", values, baseline, **more[name])


if __name__ == "__main__":
    main()
