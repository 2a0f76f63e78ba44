"""Length of turns when 100 models must be planned at once, by sla, queueing and auto.

Each model has eight workers, prefill and decode, sized by measured profiles. All workers and frontends report at the
same moment once a second: one turn takes 500 reports, five per model, and the next turn the rest. Further turns follow
until all models are planned. There are three kinds of seconds: an ordinary one; one in which the intervals of all
models end and forecasts are requested; and one in which all forecasts of the Kalman filter arrive in one turn and all
pools are sized. Forecasts are computed between turns and do not count. The default planner, auto, forecasts and sizes
in each second, so all of its seconds are ordinary. The value is the longest turn of a second, ``whole`` the sum of its
turns, in CPU time. The baseline is the longest turn of an ordinary second of the static planner, which ingests the same
reports and plans nothing.

  python -m tools.bench.plan [--quick]
"""

import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from loadline.adapters import garbage
from loadline.core.engines.profile import EngineProfile
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.sla import SlaKnobs
from loadline.core.planning.sizing.knobs import QueueingKnobs, ThroughputKnobs
from loadline.core.planning.sizing.load.stepper import LoadKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import AnyEvent, ForecastFitted, LoadReported, TrafficReported
from loadline.core.vocabulary.forecasts import ForecastKnobs
from loadline.core.vocabulary.samples import Histogram, TrafficSample, WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.profile_files import read_decode, read_prefill
from tools.bench.harness import options, percentile, progress, result
from tools.bench.leader import answers, leading_controller, renewal

MODELS: Final = 100
WORKERS: Final = 4
"""Workers of each pool."""
REPORTS: Final = 5
"""Reports of a model in one turn: with 100 models, about ``runtime.batch_max``."""
SPACING_MS: Final = 2
POINTS: Final = 500
"""Intervals in the history of each model."""
INTERVAL_MS: Final = 30_000
BLOCKS: Final = 20_000
BLOCK_TOKENS: Final = 16
BOUNDS: Final = tuple(float(2**power) for power in range(5, 17))
ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")
START_MS: Final = 1_700_000_000_000
DATA: Final = Path(__file__).parents[2] / "agent" / "loadline" / "demo" / "data"
PLANNERS: Final = {"sla": "", "queueing": "queueing_", "auto": "auto_"}
"""Measured planners, and the prefixes of their results."""
FORECAST_PLANNERS: Final = frozenset({"sla", "queueing"})
"""Planners that request forecasts of closed intervals."""
ENGINE: Final = "dynamo_h100_llama3.3-70b-fp8_tp2"


class World:
    """Leading controller, and models whose workers and frontends report at the same moment once a second."""

    def __init__(self, planner: str, seed: int) -> None:
        self.now = START_MS
        self._random = random.Random(f"{seed}:plan")  # noqa: S311 - repeatable
        self._sequence = 0
        self._models = [f"model-{number:03}" for number in range(MODELS)]
        records = [
            WorkerRecord(
                model, role, f"{role}-{number}", role, 1, kv_blocks_total=BLOCKS, block_size_tokens=BLOCK_TOKENS
            )
            for model in self._models
            for role in ROLES
            for number in range(WORKERS)
        ]
        self._controller = leading_controller(_settings(self._models, planner), records, self.now)
        if planner in FORECAST_PLANNERS:
            self._fill_history()

    def second(self, answers: Sequence[AnyEvent]) -> Iterator[tuple[float, list[AnyEffect]]]:
        """Yield the time in ms and the effects of each turn of the next second; the first turn has the ``answers``.

        After the reports, turns continue as long as one is due.
        """
        self.now += 1_000
        self._sequence += 1
        renewed = renewal(self._controller, self.now)
        reports = [self._reports(model) for model in self._models]
        for turn in itertools.count():
            now = self.now + turn * SPACING_MS
            first = turn * REPORTS
            events = [report for of_model in reports for report in of_model[first : first + REPORTS]]
            wake_ms = self._controller.next_wake()
            if not events and (wake_ms is None or wake_ms > now):
                return
            events += [renewed, *answers] if turn == 0 else ()
            began_s = time.thread_time()
            effects = self._controller.handle(events, now)
            yield (time.thread_time() - began_s) * 1e3, effects

    def _reports(self, model: str) -> list[AnyEvent]:
        workers = (self._load(model, role, number) for number in range(WORKERS) for role in ROLES)
        return [self._traffic(model), *workers]

    def _load(self, model: str, role: Role, number: int) -> LoadReported:
        """Build a report with a varying load and noisy latencies, so that the planner keeps fitting lines."""
        share, noise = self._random.uniform(0.6, 0.9), self._random.uniform(0.98, 1.02)
        sample = WorkerSample(
            self._sequence,
            self.now,
            kv_blocks_used=int(share * BLOCKS),
            waiting_requests=0,
            running_requests=40,
            queued_prefill_tokens=int(share * 4_000) if role == "prefill" else None,
            active_prefill_tokens=2_048 if role == "prefill" else None,
            ttft_ms=(100.0 + 440.0 * share) * noise if role == "prefill" else None,
            itl_ms=(10.0 + 40.0 * share) * noise if role == "decode" else None,
            isl_tokens=1_000.0 * noise,
        )
        return LoadReported(model, role, f"{role}-{number}", 1, [sample])

    def _traffic(self, model: str) -> TrafficReported:
        arrivals = self._random.randint(8, 12)
        counts = [self._random.randint(0, 2) for _ in range(len(BOUNDS) + 1)]
        counts[5] = arrivals
        bins = Histogram(BOUNDS, tuple(counts))
        sample = TrafficSample(
            self._sequence,
            1_000,
            arrivals,
            arrivals,
            isl_tokens=1_000.0 + arrivals,
            osl_tokens=200.0 + arrivals,
            ttft_ms=200.0,
            itl_ms=25.0,
            isl_histogram=bins,
            osl_histogram=bins,
        )
        return TrafficReported(model, "frontend", 1, sample)

    def _fill_history(self) -> None:
        """Give the planners a history of hours through a snapshot."""
        snapshot = msgspec.json.decode(self._controller.snapshot())
        for one in snapshot["planners"].values():
            intervals = one["demand"]["intervals"]
            waves = [math.sin(at * math.tau / 144) + self._random.uniform(-0.1, 0.1) for at in range(POINTS)]
            intervals["requests"] = [INTERVAL_MS / 1_000 * (10.0 + 2.0 * wave) for wave in waves]
            intervals["isl_tokens"] = [1_000.0 + 10.0 * wave for wave in waves]
            intervals["osl_tokens"] = [200.0 + 10.0 * wave for wave in waves]
        self._controller.restore(msgspec.json.encode(snapshot))


def _settings(models: Sequence[str], planner: str) -> Settings:
    profiles = {
        "prefill": EngineProfile(prefill=read_prefill(DATA / f"{ENGINE}_prefill.json")),
        "decode": EngineProfile(decode=read_decode(DATA / f"{ENGINE}_decode.json")),
    }
    pools = tuple(PoolKnobs(role, role, gpus_per_worker=2, replicas_max=16) for role in ROLES)
    throughput = ThroughputKnobs(INTERVAL_MS, forecast=ForecastKnobs("kalman"))
    sla, queueing = SlaKnobs(throughput, LoadKnobs()), QueueingKnobs(INTERVAL_MS, forecast=throughput.forecast)
    knobs_of_models = tuple(
        ModelKnobs(model, pools, planner=planner, planner_knobs={"sla": sla, "queueing": queueing}) for model in models
    )
    return Settings("bench", "all", knobs_of_models, profiles=dict.fromkeys(models, profiles))


def seconds_ms(planner: str, intervals: int, seed: int) -> dict[str, list[list[float]]]:
    """Return the times of the turns of each second by kind: ``ordinary``, ``closing`` and ``sizing``."""
    world = World(planner, seed)
    found: dict[str, list[list[float]]] = {"ordinary": [], "closing": [], "sizing": []}
    answered: list[ForecastFitted] = []
    learning, seconds = INTERVAL_MS // 1_000 + 1, intervals * INTERVAL_MS // 1_000
    for second in range(learning + seconds):
        if second == learning:  # lines are learned, and windows are full
            garbage.configure()
        turns = list(world.second(answered))
        requested = [answer for _, effects in turns for answer in answers(effects)]
        if requested and len(requested) != MODELS:
            raise RuntimeError(f"{len(requested)} of {MODELS} models request forecasts")
        if second >= learning:
            kind = "sizing" if answered else "closing" if requested else "ordinary"
            found[kind].append([took_ms for took_ms, _ in turns])
        answered = requested
    return found


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, intervals = (3, 2) if options(__doc__) else (7, 7)
    measured: dict[str, list[list[float]]] = {}
    medians: dict[str, list[float]] = {}
    baseline: list[float] = []
    for number in range(1, rounds + 1):
        baseline.append(_longest(seconds_ms("static", intervals, number)["ordinary"], 0.5))
        for planner, prefix in PLANNERS.items():
            seconds = {kind: found for kind, found in seconds_ms(planner, intervals, number).items() if found}
            for kind, found in seconds.items():
                measured.setdefault(prefix + kind, []).extend(found)
                medians.setdefault(prefix + kind, []).append(_longest(found, 0.5))
        text = ", ".join(f"{kind} {of[-1]:.2f} ms" for kind, of in medians.items())
        progress(f"round {number}/{rounds}: {text}; static {baseline[-1]:.2f} ms")
    for kind, values in medians.items():
        found = measured[kind]
        more: dict[str, Any] = {
            "p99": round(_longest(found, 0.99), 3),
            "whole": round(percentile([sum(turns) for turns in found], 0.5), 3),
            "turns": percentile([len(turns) for turns in found], 0.5),
            "seconds": len(found),
        }
        result(f"plan_{kind}", "ms", values, baseline, **more)


def _longest(seconds: Sequence[Sequence[float]], share: float) -> float:
    """Return a quantile of the longest turns of all seconds."""
    return percentile([max(turns) for turns in seconds], share)


if __name__ == "__main__":
    main()
