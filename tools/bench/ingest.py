"""Messages of one sample that an agent ingests per second; the baseline is a subscriber that only decodes.

python -m tools.bench.ingest [--quick]
"""

from tools.bench.harness import BenchFleet, options
from tools.bench.race import race

WORKERS, MODELS = 1_000, 10
FRAMES = 60_000  # 22 MB
BURSTS = 7


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 1 if options(__doc__) else 4
    found = race(BenchFleet(MODELS, WORKERS), FRAMES, 1, rounds=rounds, bursts=BURSTS)
    found.result("ingest", "messages/s")


if __name__ == "__main__":
    main()
