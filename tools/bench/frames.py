"""How many samples an agent takes in a second when workers send 50 of them in a frame; on one core, none lost.

The agent has one core to itself, all others share the rest. Beside it: a subscriber that only decodes, on the same
core.

  python tools/bench/frames.py [--quick]
"""

import os

from loadline.rig.bench import BenchFleet, options, race, result

WORKERS, MODELS = 1_000, 10
SAMPLES = 50
FRAMES = 4_000  # 48 MB
BURSTS = 7


def main() -> None:
    """Measure and print."""
    rounds = 1 if options(__doc__) else 4
    cores = os.sched_getaffinity(0)
    cpu = min(cores)
    os.sched_setaffinity(0, cores - {cpu} or {cpu})
    found = race(BenchFleet(MODELS, WORKERS), FRAMES, SAMPLES, rounds=rounds, bursts=BURSTS, cpu=cpu)
    result("frames", "samples/s", found.ours, found.bare, lost=found.lost)


if __name__ == "__main__":
    main()
