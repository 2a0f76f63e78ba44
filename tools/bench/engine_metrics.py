"""Time to read one page of an engine's metrics; the baseline is the parser of prometheus-client.

The page is a recorded one of vLLM, filled with lines that no reader wants to the 50 KB of the original.

  python -m tools.bench.engine_metrics [--quick]
"""

import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from loadline.engine_metrics.engine_reader import EngineReader
from tools.bench.harness import options, result

RECORDED = Path(__file__).parents[2] / "tests/data/engines/vllm-0.32.prom"
UNWANTED = b'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 2.0\n'
WHOLE_BYTES = 50_000


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 20 if options(__doc__) else 200
    page = RECORDED.read_bytes()
    page += UNWANTED * ((WHOLE_BYTES - len(page)) // len(UNWANTED))
    text, reader = page.decode(), EngineReader("vllm")
    times_ms = [milliseconds(lambda: reader.read(page, 1)) for _ in range(rounds)]
    baselines_ms = [milliseconds(lambda: list(text_string_to_metric_families(text))) for _ in range(rounds)]
    result("engine_metrics", "ms", times_ms, baselines_ms, kilobytes=len(page) // 1_000)


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1_000


if __name__ == "__main__":
    main()
