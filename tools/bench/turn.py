"""99th percentile over all seconds of the longest turn in each second, with 10,000 workers that report at 1 Hz.

The baseline has 1,000 workers.

  python tools/bench/turn.py [--quick]
"""

import asyncio

from loadline.rig.bench import BenchFleet, RawPublisher, agent, options, percentile, progress, result, rig, warm

WORKERS, FEW_WORKERS, MODELS = 10_000, 1_000, 50


def turns_ms(workers: int, seconds: float) -> tuple[list[float], list[float], int]:
    """Return the longest turn of every second and all turns, in ms, and the number of lost reports."""
    fleet = BenchFleet(MODELS, workers)
    with rig() as servers, RawPublisher(servers.nats.port) as wire:
        asyncio.run(servers.register(fleet.records, "agent"))
        with agent(servers, fleet) as child:
            warm(fleet, wire, child)
            wire.play(fleet.report_bursts(2.0))  # steady state from here on
            child.sample()
            child.turns.clear()
            wire.play(fleet.report_bursts(seconds))
            sample = child.wait(lambda sample: sample.sequences + sample.lost >= fleet.sequences)
    longest: dict[int, float] = {}
    for at_s, took_s in child.turns:
        longest[int(at_s)] = max(longest.get(int(at_s), 0.0), took_s * 1e3)
    return list(longest.values()), [took_s * 1e3 for _, took_s in child.turns], sample.lost


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, seconds = (1, 20.0) if options(__doc__) else (3, 60.0)
    p99s: list[float] = []
    base_p99s: list[float] = []
    all_turns: list[float] = []
    lost = 0
    for number in range(1, rounds + 1):
        base_p99s.append(percentile(turns_ms(FEW_WORKERS, seconds)[0], 0.99))
        longest, turns, lost_now = turns_ms(WORKERS, seconds)
        p99s.append(percentile(longest, 0.99))
        all_turns += turns
        lost += lost_now
        progress(
            f"round {number}/{rounds}: {p99s[-1]:.1f} ms in {len(turns)} turns;"
            f" with {FEW_WORKERS} workers {base_p99s[-1]:.1f} ms"
        )
    more = {"all_turns_p99": round(percentile(all_turns, 0.99), 3), "longest": round(max(all_turns), 3), "lost": lost}
    result("turn", "ms", p99s, base_p99s, **more)


if __name__ == "__main__":
    main()
