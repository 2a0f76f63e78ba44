"""Resident memory of an agent with 10,000 registered and reporting workers; the baseline has 10 workers.

python -m tools.bench.memory [--quick]
"""

import asyncio

from tools.bench.harness import BenchFleet, RawPublisher, agent, options, progress, result, rig, warm

WORKERS, FEW_WORKERS, MODELS = 10_000, 10, 10


def memory_mb(workers: int, seconds: float) -> tuple[float, float]:
    """Return the memory after ``seconds`` of reports at 1 Hz, and its peak, in MB."""
    fleet = BenchFleet(MODELS, workers)
    with rig() as servers, RawPublisher(servers.nats.port) as wire:
        asyncio.run(servers.register(fleet.records, "agent"))
        with agent(servers, fleet) as child:
            warm(fleet, wire, child)
            wire.play(fleet.report_bursts(seconds))
            return child.memory_mb()


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, seconds = (1, 5.0) if options(__doc__) else (3, 30.0)
    memories_mb: list[float] = []
    peaks: list[float] = []
    baselines_mb: list[float] = []
    for number in range(1, rounds + 1):
        baselines_mb.append(memory_mb(FEW_WORKERS, seconds)[0])
        resident_mb, peak = memory_mb(WORKERS, seconds)
        memories_mb.append(resident_mb)
        peaks.append(peak)
        progress(
            f"round {number}/{rounds}: {resident_mb:.0f} MB, peak {peak:.0f} MB;"
            f" with {FEW_WORKERS} workers {baselines_mb[-1]:.0f} MB"
        )
    result("memory", "MB", memories_mb, baselines_mb, peak=round(max(peaks), 1))


if __name__ == "__main__":
    main()
