"""Time of 10,000 vectorised interpolations of an engine profile: the slowest of the four kinds.

The baseline is as many linear interpolations of numpy. Also measured: a search for the best throughput, a regression of
50 samples, and the division of a GPU budget between two pools.

  python -m tools.bench.profile [--quick]
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from loadline.core.engines.latency_models import DecodeSurface, PrefillCurve
from loadline.core.engines.regression import Regression
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.planning.guardrails.pool_changes import PoolChange, fit_changes
from loadline.profile_files import read_decode, read_prefill
from tools.bench.harness import options, progress, result

POINTS = 10_000
DATA = Path(__file__).parents[2] / "agent" / "loadline" / "demo" / "data"
ENGINE = "dynamo_h100_llama3.3-70b-fp8_tp2"


def median_ms(action: Callable[[], object], times: int) -> float:
    """Return the median time in ms."""
    took_ms: list[float] = []
    for _ in range(times):
        began_s = time.perf_counter()
        action()
        took_ms.append((time.perf_counter() - began_s) * 1e3)
    return sorted(took_ms)[times // 2]


def fit(regression: Regression) -> None:
    """Fit again, as after a new sample."""
    regression.fitted = None
    regression.line()


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, times = (2, 100) if options(__doc__) else (7, 500)
    sweeps = read_prefill(DATA / f"{ENGINE}_prefill.json"), read_decode(DATA / f"{ENGINE}_decode.json")
    prefill, decode = PrefillCurve(sweeps[0]), DecodeSurface(sweeps[1])
    stream = random.Random("profile")  # noqa: S311 - the same points every time
    tokens = np.asarray([stream.uniform(0.0, 20_000.0) for _ in range(POINTS)])
    usage = np.asarray([stream.random() for _ in range(POINTS)])
    kinds: dict[str, Callable[[], object]] = {
        "ttft": lambda: prefill.ttft_ms(tokens),
        "prefill_throughput": lambda: prefill.tokens_per_s_per_gpu(tokens),
        "itl": lambda: decode.itl_ms(usage, tokens),
        "decode_throughput": lambda: decode.tokens_per_s_per_gpu(usage, tokens),
    }
    regression = Regression()
    for number in range(50):
        regression.push(stream.uniform(1.0, 1e4), 10.0 + number + stream.random())
    changes = PoolChange(24, 16, 2), PoolChange(40, 48, 1)
    singles: dict[str, Callable[[], object]] = {
        "best_us": lambda: decode.find_best_throughput_per_gpu(30.0, 3_000.0),
        "regression_us": lambda: fit(regression),
        "budget_us": lambda: fit_changes(changes, GpuBand(88, 88)),
    }
    slowest: list[float] = []
    baseline: list[float] = []
    for number in range(1, rounds + 1):
        found = {name: median_ms(kind, times) for name, kind in kinds.items()}
        slowest.append(max(found.values()))
        baseline.append(median_ms(lambda: np.interp(tokens, sweeps[0].isl_tokens, sweeps[0].ttft_ms), times))
        progress(f"round {number}/{rounds}: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in found.items()))
    single_us = {name: round(median_ms(single, times) * 1e3, 1) for name, single in singles.items()}
    result("profile", "ms", slowest, baseline, **single_us)


if __name__ == "__main__":
    main()
