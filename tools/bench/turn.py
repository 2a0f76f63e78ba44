"""99th percentile over all seconds of the longest turn in each second, with 10,000 workers that report at 1 Hz.

The workers are of 50 models, and all of one pool. ``cpu_p99`` is the same of the processor time of turns, without the
time for which other programs had the processor. The baseline has 1,000 workers.

  python -m tools.bench.turn [--quick]
"""

import asyncio

from msgspec import Struct

from tools.bench.harness import BenchFleet, RawPublisher, agent, options, percentile, progress, result, rig, warm

WORKERS, FEW_WORKERS = 10_000, 1_000
MODELS = {"turn": 50, "turn of one pool": 1}
"""Number of models by the name of the result."""


class Turns(Struct):
    """Turns of an agent in ms."""

    longest: list[float]
    """Longest turn of each second."""
    longest_cpu: list[float]
    """Most processor time of a turn of each second."""
    all: list[float]
    lost: int
    """Lost reports."""


def turns_ms(models: int, workers: int, seconds: float) -> Turns:
    """Measure the turns of some seconds."""
    fleet = BenchFleet(models, workers)
    with rig() as servers, RawPublisher(servers.nats.port) as wire:
        asyncio.run(servers.register(fleet.records, "agent"))
        with agent(servers, fleet) as child:
            warm(fleet, wire, child)
            wire.play(fleet.report_bursts(2.0))  # steady state from here on
            child.sample()
            child.turns.clear()
            child.turns_cpu_s.clear()
            wire.play(fleet.report_bursts(seconds))
            sample = child.wait(lambda sample: sample.sequences + sample.lost >= fleet.sequences)
    longest: dict[int, float] = {}
    longest_cpu: dict[int, float] = {}
    for (at_s, took_s), cpu_s in zip(child.turns, child.turns_cpu_s, strict=True):
        longest[int(at_s)] = max(longest.get(int(at_s), 0.0), took_s * 1e3)
        longest_cpu[int(at_s)] = max(longest_cpu.get(int(at_s), 0.0), cpu_s * 1e3)
    took_ms = [took_s * 1e3 for _, took_s in child.turns]
    return Turns(list(longest.values()), list(longest_cpu.values()), took_ms, sample.lost)


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, seconds = (1, 20.0) if options(__doc__) else (3, 60.0)
    for name, models in MODELS.items():
        measure(name, models, rounds, seconds)


def measure(name: str, models: int, rounds: int, seconds: float) -> None:
    """Measure the turns of a fleet of so many models, and print the result."""
    p99s: list[float] = []
    base_p99s: list[float] = []
    found: list[Turns] = []
    for number in range(1, rounds + 1):
        base_p99s.append(percentile(turns_ms(models, FEW_WORKERS, seconds).longest, 0.99))
        found.append(turns_ms(models, WORKERS, seconds))
        p99s.append(percentile(found[-1].longest, 0.99))
        progress(
            f"{name}, round {number}/{rounds}: {p99s[-1]:.1f} ms in {len(found[-1].all)} turns;"
            f" with {FEW_WORKERS} workers {base_p99s[-1]:.1f} ms"
        )
    all_turns = [took_ms for turns in found for took_ms in turns.all]
    more = {
        "cpu_p99": round(percentile([took_ms for turns in found for took_ms in turns.longest_cpu], 0.99), 3),
        "all_turns_p99": round(percentile(all_turns, 0.99), 3),
        "longest": round(max(all_turns), 3),
        "lost": sum(turns.lost for turns in found),
    }
    result(name, "ms", p99s, base_p99s, **more)


if __name__ == "__main__":
    main()
