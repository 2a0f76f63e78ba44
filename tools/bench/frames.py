"""How many samples an agent takes in a second when workers send 50 of them in a frame; on one core, none lost.

The agent has one core to itself, all others share the rest. That none is lost is seen from the sequences which its
fleet holds afterwards, and from what was dropped or refused on the way. Beside it: a subscriber that only decodes, on
the same core.

  python tools/bench/frames.py [--quick]
"""

import asyncio
import os
import statistics

from loadline.demo.measure import Fleet, Wire, agent, options, result, rig, say, subscriber, taken_per_s, warm

WORKERS, MODELS = 1_000, 10
SAMPLES = 50
FRAMES = 4_000  # 48 MB
BURSTS = 5
CPU = min(os.sched_getaffinity(0))


def main() -> None:
    """Measure and print."""
    rounds = 3 if options(__doc__) else 7
    fleet = Fleet(MODELS, WORKERS)
    ours: list[float] = []
    bare: list[float] = []
    lost = 0
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {CPU} or {CPU})
    with rig() as made, Wire(made.nats.port) as wire:
        asyncio.run(made.register(fleet.records, "agent"))
        for number in range(1, rounds + 1):
            with subscriber(made, CPU) as child:
                child.wait(lambda look: look.ready)
                rates = [taken_per_s(fleet, wire, child, FRAMES, SAMPLES)[0] for _ in range(BURSTS)]
                bare.append(SAMPLES * statistics.median(rates))
            with agent(made, fleet, cpu=CPU) as child:
                warm(fleet, wire, child)
                bursts = [taken_per_s(fleet, wire, child, FRAMES, SAMPLES) for _ in range(BURSTS)]
                lost += fleet.sequences - child.look().sequences
            ours.append(SAMPLES * statistics.median(rate for rate, _ in bursts))
            lost += sum(gone for _, gone in bursts)
            say(f"round {number}/{rounds}: {ours[-1]:,.0f}/s, bare {bare[-1]:,.0f}/s, {lost} lost")
    result("frames", "samples/s", ours, bare, lost=lost)


if __name__ == "__main__":
    main()
