"""How many messages of one sample an agent takes in a second, beside a subscriber that only decodes them.

Both are processes of their own and take bursts in turn: published as fast as the server takes them, and below the
64 MiB that the server keeps for a slow reader.

  python tools/bench/ingest.py [--quick]
"""

import asyncio
import statistics

from loadline.demo.measure import Fleet, Wire, agent, options, result, rig, say, subscriber, taken_per_s, warm

WORKERS, MODELS = 1_000, 10
FRAMES = 60_000
BURSTS = 3


def main() -> None:
    """Measure and print."""
    rounds = 3 if options(__doc__) else 7
    fleet = Fleet(MODELS, WORKERS)
    ours: list[float] = []
    bare: list[float] = []
    lost = 0
    with rig() as made, Wire(made.nats.port) as wire:
        asyncio.run(made.register(fleet.records, "agent"))
        for number in range(1, rounds + 1):
            with subscriber(made) as child:
                child.wait(lambda look: look.ready)
                bare.append(statistics.median(taken_per_s(fleet, wire, child, FRAMES)[0] for _ in range(BURSTS)))
            with agent(made, fleet) as child:
                warm(fleet, wire, child)
                bursts = [taken_per_s(fleet, wire, child, FRAMES) for _ in range(BURSTS)]
            ours.append(statistics.median(rate for rate, _ in bursts))
            lost += sum(gone for _, gone in bursts)
            say(f"round {number}/{rounds}: {ours[-1]:,.0f}/s, bare {bare[-1]:,.0f}/s, {lost} lost")
    result("ingest", "messages/s", ours, bare, lost=lost)


if __name__ == "__main__":
    main()
