"""CPU time of forecasts of 500 points, and the stall of the event loop during an ARIMA fit.

Kalman is compared with filterpy alone over the same points, the other predictors with the constant one. The stall is
the longest busy time between two iterations of a loop with a turn per millisecond and 1,000 load reports per second, in
CPU time: while a child starts, while it fits, and while a late one is killed; the baseline is an idle loop. The
overrun of the deadline is the delay of the answer of a late fit.

  python -m tools.bench.forecast [--quick]
"""

import asyncio
import math
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import Struct

from loadline.adapters import garbage
from loadline.adapters.child_fitter import ChildFitter
from loadline.core.controller import Controller
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.events import RegistryRead
from loadline.core.vocabulary.forecasts import AnyPredictor, ForecastKnobs, ForecastQuery, Series
from loadline.core.vocabulary.samples import RegisteredWorker
from loadline.forecast import available, forecast
from loadline.wire.codec import Codec, Rejected
from loadline.wire.subjects import Subjects
from tools.bench.harness import POOL, ROOT, BenchFleet, options, progress, result

POINTS = 500
INTERVAL_MS = 600_000
HORIZON = 6
TICK_S = 0.001
DEADLINE_S = 60.0
SHORT_S = 0.1
"""Deadline shorter than any fit that chooses an order."""
MODELS, WORKERS = 10, 1_000
PREDICTORS: tuple[AnyPredictor, ...] = ("constant", "seasonal", "auto", "arima", "prophet")


def query(predictor: AnyPredictor, seed: int) -> ForecastQuery:
    """Build a series of noisy days at intervals of ten minutes."""
    rng = random.Random(f"{seed}:forecast")  # noqa: S311 - repeatable
    values = [1_000.0 + 400.0 * math.sin(at * math.tau / 144) + rng.gauss(0.0, 40.0) for at in range(POINTS)]
    return ForecastQuery(Series(tuple(values), INTERVAL_MS, POINTS * INTERVAL_MS), HORIZON, ForecastKnobs(predictor))


def forecast_ms(predictor: AnyPredictor, seed: int) -> float:
    """Return the CPU time of one forecast in this process."""
    request = query(predictor, seed)
    began_s = time.process_time()
    answer = forecast(request)
    took_ms = (time.process_time() - began_s) * 1e3
    if answer is None or answer.fallback:
        raise RuntimeError(f"{predictor} gave {answer}")
    return took_ms


def bare_ms(seed: int) -> float:
    """Return the CPU time of filterpy alone."""
    from filterpy.kalman import KalmanFilter  # noqa: PLC0415 - 2 s to import

    model = KalmanFilter(dim_x=2, dim_z=1)
    model.F = np.array([[1.0, 1.0], [0.0, 1.0]])
    model.H = np.array([[1.0, 0.0]])
    values = query("kalman", seed).series.values
    began_s = time.process_time()
    for value in values:
        model.predict()
        model.update(value)
    return (time.process_time() - began_s) * 1e3


class Turns:
    """Turns of a controller whose workers report once a second, evenly spaced."""

    def __init__(self) -> None:
        self._fleet = BenchFleet(MODELS, WORKERS)
        self._codec = Codec(Subjects(ROOT), 1_000_000)
        models = tuple(ModelKnobs(model, (PoolKnobs(POOL, POOL),)) for model in self._fleet.models)
        self._controller = Controller(Settings("bench", "all", models))
        registered = [RegisteredWorker(record, 1) for record in self._fleet.records]
        self._controller.handle([RegistryRead(registered)], _now_ms())
        self._began_s, self._reports = time.monotonic(), 0

    def turn(self) -> None:
        """Handle the reports that are due."""
        due = int((time.monotonic() - self._began_s) * WORKERS)
        frames = [self._fleet.frame(number % WORKERS).split(b"\r\n") for number in range(self._reports, due)]
        events = [self._codec.decode(head.split()[1].decode(), payload) for head, payload, _ in frames]
        self._controller.handle([event for event in events if not isinstance(event, Rejected)], _now_ms())
        self._reports = due
        if self._controller.state.rejected or len(events) != len(frames):
            raise RuntimeError(f"reports were rejected: {self._controller.state.rejected}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def stall_ms(work: Coroutine[Any, Any, Any]) -> float:
    """Return the longest busy time of the loop between the ends of two turns, during ``work``."""
    turns = Turns()
    turns.turn()
    longest_s, doing = 0.0, asyncio.create_task(work)
    last_s = time.thread_time()
    while not doing.done():
        await asyncio.sleep(TICK_S)
        turns.turn()
        now_s = time.thread_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    doing.result()
    return longest_s * 1e3


async def late_ms(fitter: ChildFitter, seed: int) -> float:
    """Return the delay after the deadline of the answer for a fit that takes longer."""
    began_s = time.perf_counter()
    answer = await fitter.fit(query("arima", seed), SHORT_S)
    took_s = time.perf_counter() - began_s
    if answer is None or answer.fallback != "late":
        raise RuntimeError(f"the fit took less than {SHORT_S:g} s: {answer}")
    return (took_s - SHORT_S) * 1e3


class Stalls(Struct):
    """Stalls by round, in ms."""

    starting: list[float] = []
    fitting: list[float] = []
    idle: list[float] = []
    killing: list[float] = []
    over: list[float] = []
    """Overruns of the deadline."""


async def stalls(rounds: int) -> Stalls:
    """Measure while a child starts, while it chooses an order and fits, while idle, and while a fit is late."""
    found = Stalls()

    async def be_late(fitter: ChildFitter, seed: int) -> None:
        found.over.append(await late_ms(fitter, seed))

    for number in range(1, rounds + 1):
        fitter = ChildFitter()
        try:
            found.starting.append(await stall_ms(fitter.fit(query("constant", number), DEADLINE_S)))
            began_s = time.perf_counter()
            found.fitting.append(await stall_ms(fitter.fit(query("arima", number), DEADLINE_S)))
            took_s = time.perf_counter() - began_s
            found.idle.append(await stall_ms(asyncio.sleep(took_s)))
            found.killing.append(await stall_ms(be_late(fitter, number + rounds)))
        finally:
            with suppress(OSError):
                await fitter.close()
        progress(
            f"stall {number}/{rounds}: {found.fitting[-1]:.2f} ms in a fit of {took_s:.1f} s, {found.idle[-1]:.2f} ms "
            f"in none; {found.over[-1]:.1f} ms over the deadline"
        )
    return found


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 3 if options(__doc__) else 11
    forecast_ms("kalman", 0), bare_ms(0)  # imports do not count
    kalman = [forecast_ms("kalman", seed) for seed in range(rounds)]
    result("forecast_kalman", "ms", kalman, [bare_ms(seed) for seed in range(rounds)])
    for predictor in PREDICTORS:
        if not available(predictor):
            continue
        first_ms = forecast_ms(predictor, 0)
        taken = [forecast_ms(predictor, seed) for seed in range(1, rounds + 1)]
        constant = [forecast_ms("constant", seed) for seed in range(1, rounds + 1)]
        result(f"forecast_{predictor}", "ms", taken, constant, first_ms=round(first_ms, 1))
    garbage.configure()
    found = asyncio.run(stalls(max(2, rounds // 3)))
    more = {"start_ms": found.starting, "kill_ms": found.killing, "over_deadline_ms": found.over}
    longest = {name: round(max(values), 2) for name, values in more.items()}
    result("forecast_stall", "ms", found.fitting, found.idle, longest_ms=round(max(found.fitting), 2), **longest)


if __name__ == "__main__":
    main()
