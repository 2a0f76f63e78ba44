"""What a forecast of 500 points takes of a core, and what a fit of ARIMA does to the loop of who asked for it.

Kalman is measured beside filterpy alone, step by step over the same points, the others beside the constant predictor.
The stall is the longest that a loop, which wants a tick each millisecond, was busy between two ticks, in time of its
core: while a child starts, while it fits, and beside it while nothing is done.

  python tools/bench/forecast.py [--quick]
"""

import asyncio
import math
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import numpy as np

from loadline.adapters.process_fitter import ProcessFitter
from loadline.core.forecasts import AnyPredictor, ForecastKnobs, Question, Series
from loadline.forecast import available, forecast
from loadline.rig.measure import options, percentile, result, say

POINTS = 500
INTERVAL_MS = 600_000
HORIZON = 6
TICK_S = 0.001
DEADLINE_S = 60.0
PREDICTORS: tuple[AnyPredictor, ...] = ("constant", "seasonal", "auto", "arima", "prophet")


def question(predictor: AnyPredictor, seed: int) -> Question:
    """Days of ten minutes, with noise."""
    rng = random.Random(f"{seed}:forecast")  # noqa: S311 - repeatable
    values = [1_000.0 + 400.0 * math.sin(at * math.tau / 144) + rng.gauss(0.0, 40.0) for at in range(POINTS)]
    return Question(Series(tuple(values), INTERVAL_MS, POINTS * INTERVAL_MS), HORIZON, ForecastKnobs(predictor))


def asked_ms(predictor: AnyPredictor, seed: int) -> float:
    """One forecast in this process, in time of its core."""
    asked = question(predictor, seed)
    began_s = time.process_time()
    answer = forecast(asked)
    took_ms = (time.process_time() - began_s) * 1e3
    if answer is None or answer.fallback:
        raise RuntimeError(f"{predictor} gave {answer}")
    return took_ms


def bare_ms(seed: int) -> float:
    """Nothing but filterpy, in time of the core."""
    from filterpy.kalman import KalmanFilter  # noqa: PLC0415 - 2 s to import

    model = KalmanFilter(dim_x=2, dim_z=1)
    model.F = np.array([[1.0, 1.0], [0.0, 1.0]])
    model.H = np.array([[1.0, 0.0]])
    values = question("kalman", seed).series.values
    began_s = time.process_time()
    for value in values:
        model.predict()
        model.update(value)
    return (time.process_time() - began_s) * 1e3


async def stall_ms(work: Coroutine[Any, Any, Any]) -> float:
    """The longest that the loop was busy between two ticks beside some work."""
    longest_s, doing = 0.0, asyncio.create_task(work)
    last_s = time.thread_time()
    while not doing.done():
        await asyncio.sleep(TICK_S)
        now_s = time.thread_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    doing.result()
    return longest_s * 1e3


async def fitting_ms(rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Stalls while a child starts, while it chooses an order and fits, and while nothing is done."""
    starts, fits, idle = [], [], []
    for number in range(1, rounds + 1):
        fitter = ProcessFitter()
        try:
            starts.append(await stall_ms(fitter.fit(question("constant", number), DEADLINE_S)))
            began_s = time.perf_counter()
            fits.append(await stall_ms(fitter.fit(question("arima", number), DEADLINE_S)))
            took_s = time.perf_counter() - began_s
            idle.append(await stall_ms(asyncio.sleep(took_s)))
        finally:
            with suppress(OSError):
                await fitter.close()
        say(f"stall {number}/{rounds}: {fits[-1]:.2f} ms in a fit of {took_s:.1f} s, {idle[-1]:.2f} ms in none")
    return starts, fits, idle


def main() -> None:
    """Measure and print."""
    rounds = 3 if options(__doc__) else 11
    asked_ms("kalman", 0), bare_ms(0)  # what is imported does not count
    kalman = [asked_ms("kalman", seed) for seed in range(rounds)]
    result("forecast_kalman", "ms", kalman, [bare_ms(seed) for seed in range(rounds)])
    for predictor in PREDICTORS:
        if not available(predictor):
            continue
        first_ms = asked_ms(predictor, 0)
        found = [asked_ms(predictor, seed) for seed in range(1, rounds + 1)]
        constant = [asked_ms("constant", seed) for seed in range(1, rounds + 1)]
        result(f"forecast_{predictor}", "ms", found, constant, first_ms=round(first_ms, 1))
    starts, fits, idle = asyncio.run(fitting_ms(max(2, rounds // 3)))
    result("forecast_stall", "ms", fits, idle, start_ms=round(percentile(starts, 0.5), 2))


if __name__ == "__main__":
    main()
