"""Time to size 1,000 engines for TTFT and ITL, with batches of up to 64 and queues ten times as long.

The baseline is as many single analyses by the plain solution, which enumerates all states. Also measured: a steady
state and a sizing of one engine with a batch of 256 and a queue of 2,560, by means and by percentiles; and larger
batches.

  python -m tools.bench.queueing [--quick]
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import exp, log

from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.queue_sizing import Targets, max_rate
from loadline.core.engines.queueing import EngineQueue
from tools.bench.harness import options, progress, result

ENGINES = 1_000
PLAIN = 20
"""Number of plain analyses that are measured and extrapolated, since they are slow."""
QUEUE_BY_BATCH = 10


def best_us(what: Callable[[], object], times: int) -> float:
    """Return the shortest of several times in us, to exclude the load of other processes."""
    took: list[float] = []
    for _ in range(times):
        began_s = time.perf_counter()
        what()
        took.append((time.perf_counter() - began_s) * 1e6)
    return min(took)


def fleet(batch: int, attainment: float) -> tuple[list[EngineQueue], list[Targets]]:
    """Build various engines, with targets between their latencies when idle and when full."""
    draw = random.Random(f"{batch} {attainment}")  # noqa: S311 - the same engines every time
    queues, targets = [], []
    for _ in range(ENGINES):
        times = LinearTimes(draw.uniform(2, 40), draw.uniform(0.01, 0.5), draw.uniform(5, 40), draw.uniform(1e-4, 1e-2))
        queue = EngineQueue(times, draw.randint(50, 4_000), draw.randint(2, 1_000), batch, QUEUE_BY_BATCH * batch)
        full = queue.steady_state(999.0 * queue.rate_max)
        ttft_ms = (queue.prefill_fixed_ms + queue.prefill_each_ms * full.batch_requests) * draw.uniform(1.0, 3.0)
        itl_ms = times.alpha + times.beta * batch * draw.uniform(0.5, 1.0)
        queues.append(queue)
        targets.append(Targets(ttft_ms=ttft_ms, itl_ms=itl_ms, attainment=attainment))
    return queues, targets


def size_all(queues: Sequence[EngineQueue], targets: Sequence[Targets]) -> None:
    """Compute the maximum rate of every engine."""
    for queue, target in zip(queues, targets, strict=True):
        max_rate(queue, target)


def plain_ms(queue: EngineQueue) -> float:
    """Return the mean wait at 90% of the largest rate, from an enumeration of all states."""
    rate, weights = 0.9 * queue.rate_max, [0.0]
    for requests in range(1, queue.batch_max + queue.queue_max + 1):
        running = min(requests, queue.batch_max)
        weights.append(weights[-1] + log(rate * (queue.fixed_ms + queue.each_ms * running) / running))
    highest = max(weights)
    shares = [exp(weight - highest) for weight in weights]
    waiting = sum(place * share for place, share in enumerate(shares[queue.batch_max :]))
    return waiting / (rate * sum(shares[:-1]))


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, times = (2, 3) if options(__doc__) else (7, 5)
    values: list[float] = []
    baselines: list[float] = []
    queues, targets = fleet(64, 0.0)
    some = queues[:: ENGINES // PLAIN]
    figures: dict[str, float] = {}
    for number in range(1, rounds + 1):
        values.append(best_us(partial(size_all, queues, targets), times) / 1e3)
        baselines.append(best_us(lambda: [plain_ms(queue) for queue in some], 1) / 1e3 * (ENGINES / PLAIN))
        progress(f"round {number}/{rounds}: {values[-1]:.1f} ms, plain analyses {baselines[-1]:.0f} ms")
    for batch, attainment in ((64, 0.95), (256, 0.0), (256, 0.95)):
        one, two = fleet(batch, attainment)
        kind = f"p{100 * attainment:.0f}" if attainment else "mean"
        figures[f"batch_{batch}_{kind}_ms"] = best_us(partial(size_all, one, two), times * rounds) / 1e3
    llama = EngineQueue(LinearTimes(6.958, 0.042, 14.0, 0.0005), 512.0, 128.0, 256, 2_560)
    for load in (0.5, 0.9, 0.99, 2.0):
        figures[f"steady_state_{load:g}_us"] = best_us(
            partial(llama.steady_state, 1_000.0 * load * llama.rate_max), 1_000 * rounds
        )
    singles = {
        "ttft": Targets(ttft_ms=179.0),
        "itl": Targets(itl_ms=12.0),
        "ttft_p95": Targets(ttft_ms=500.0, attainment=0.95),
        "itl_p95": Targets(itl_ms=12.0, attainment=0.95),
    }
    for name, target in singles.items():
        figures[f"{name}_us"] = best_us(partial(max_rate, llama, target), 100 * rounds)
    result("queueing", "ms", values, baselines, **{name: round(figure, 1) for name, figure in figures.items()})


if __name__ == "__main__":
    main()
