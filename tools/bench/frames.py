"""Samples per second that an agent ingests on one core, with 50 samples per frame and none lost.

The agent has a core to itself, all other processes share the rest. The baseline is a subscriber on that core that only
decodes.

  python -m tools.bench.frames [--quick]
"""

import os

from tools.bench.harness import BenchFleet, options
from tools.bench.race import race

WORKERS, MODELS = 1_000, 10
SAMPLES = 50
FRAMES = 4_000  # 48 MB
BURSTS = 7


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 1 if options(__doc__) else 4
    cores = os.sched_getaffinity(0)
    cpu = min(cores)
    os.sched_setaffinity(0, cores - {cpu} or {cpu})
    found = race(BenchFleet(MODELS, WORKERS), FRAMES, SAMPLES, rounds=rounds, bursts=BURSTS, cpu=cpu)
    found.result("frames", "samples/s")


if __name__ == "__main__":
    main()
