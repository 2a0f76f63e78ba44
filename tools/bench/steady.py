"""A steady load of frames of 50 samples at a share of the rate of a bare subscriber: delays, losses, and memory.

The delay of a frame ends with the turn that has its newest sample in the fleet; it begins when the burst of 100 frames
that contains it is handed to the kernel. Memory is compared after a fifth of the time, and at the end.

  python -m tools.bench.steady [--quick]
"""

import asyncio
import json
import re
import statistics
import time

from tools.bench.harness import (
    BenchFleet,
    ProbedProcess,
    RawPublisher,
    agent,
    options,
    percentile,
    progress,
    rig,
    subscriber,
    warm,
)
from tools.bench.race import ingest_speed

WORKERS, MODELS, SAMPLES = 1_000, 10, 50
BURST = 100
SHARE = 0.6
TRIALS = 5


class RepeatedBursts:
    """Bursts of frames of a part of the workers, built once: only sequences and times differ between rounds.

    Args:
        fleet: The workers, which have reported fewer than 1,000 samples each.
        root: Root of the subjects.
    """

    def __init__(self, fleet: BenchFleet, root: bytes) -> None:
        burst = fleet.burst(WORKERS, SAMPLES).replace(b"PUB loadline.", b"PUB %b." % root)
        numbers = iter(range(WORKERS * SAMPLES))
        payloads = re.split(rb"(PUB \S+) \d+\r\n", burst)[1:]
        frames: list[bytes] = []
        for header, payload in zip(payloads[::2], payloads[1::2], strict=True):
            text = re.sub(rb'"timestamp_ms":\d+', b'"timestamp_ms":@TIME@@@@@@@@', payload)
            text = re.sub(rb'"sequence":\d+', lambda _: b'"sequence":1@ROUND@%02d' % (next(numbers) % SAMPLES), text)
            frames.append(b"%b %d\r\n%b" % (header, len(text) - 2, text))
        self._bursts = [b"".join(frames[first : first + BURST]) for first in range(0, WORKERS, BURST)]
        self._sent = 0

    def next(self) -> bytes:
        """Return the next burst."""
        number, part = divmod(self._sent, len(self._bursts))
        self._sent += 1
        stamped = self._bursts[part].replace(b"@TIME@@@@@@@@", b"%013d" % (time.time_ns() // 1_000_000))
        return stamped.replace(b"@ROUND@", b"%07d" % number)


def bare_rate(wire: RawPublisher, bare: ProbedProcess, bursts: RepeatedBursts) -> float:
    """Return the median rate of frames of the bare subscriber."""
    rounds = (b"".join(bursts.next() for _ in range(2 * WORKERS // BURST)) for _ in range(TRIALS))
    return statistics.median(ingest_speed(wire, bare, frames, 2 * WORKERS).per_s for frames in rounds)


def main() -> None:
    """Run the benchmark and print its results."""
    seconds = 30.0 if options(__doc__) else 600.0
    fleet = BenchFleet(MODELS, WORKERS)
    with rig() as servers, RawPublisher(servers.nats.port) as wire:
        asyncio.run(servers.register(fleet.records, "agent"))
        with subscriber(servers) as bare:
            bare.wait(lambda sample: sample.ready)
            rate = bare_rate(wire, bare, RepeatedBursts(fleet, b"bareline"))
        with agent(servers, fleet, delays=True) as child:
            warm(fleet, wire, child)
            source, before, delays = RepeatedBursts(fleet, b"loadline"), child.sample(), list[float]()
            bursts = round(seconds * rate * SHARE / BURST)
            early_mb, began_s = 0.0, time.monotonic()
            for number in range(bursts):
                time.sleep(max(0.0, began_s + number * seconds / bursts - time.monotonic()))
                wire.send(source.next())
                if number % 100 == 0:
                    delays += child.sample().delays_ms
                if number == bursts // 5:
                    early_mb = child.memory_mb()[0]
            took_s = time.monotonic() - began_s
            end = child.wait(lambda sample: sample.frames - before.frames >= bursts * BURST)
            delays += end.delays_ms
            memory = child.memory_mb()[0]
    progress(f"{len(delays)} delays; sending took {took_s:.1f} s instead of {seconds:g} s")
    line = {
        "name": "steady",
        "samples_per_s": round(bursts * BURST * SAMPLES / took_s),
        "share_of_bare": round(bursts * BURST / took_s / rate, 2),
        "seconds": round(took_s),
        "delay_ms": {"p50": percentile(delays, 0.5), "p99": percentile(delays, 0.99), "max": max(delays)},
        "lost": end.lost - before.lost + end.journal_lost,
        "memory_mb": [round(early_mb, 1), round(memory, 1)],
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
