"""A steady load of frames of 50 samples at a share of the rate of a bare subscriber: delays, losses, and memory.

The delay of a frame ends with the turn that has its newest sample in the fleet; it begins when the burst of 100 frames
that contains it is handed to the kernel. Memory is compared after a fifth of the time, and at the end.

Other programs of the machine delay the agent, NATS and the publisher. So after each minute of the agent, a bare
subscriber takes the same load for 20 s, and each minute has a p99 of its own. ``late_ms`` is the p99 of the time by
which the publisher was late, which no delay contains; ``core_wait`` is the share of the time in which the main thread
was ready to run and had no core.

  python -m tools.bench.steady [--quick]
"""

import asyncio
import json
import re
import statistics
import time

from msgspec import Struct

from tools.bench.harness import (
    BARE_ROOT,
    ROOT,
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
from tools.bench.probe import ProbeSample
from tools.bench.race import ingest_speed

WORKERS, MODELS, SAMPLES = 1_000, 10, 50
BURST = 100
SHARE = 0.6
TRIALS = 5
MINUTES, MINUTE_S, QUICK_S = 10, 60.0, 30.0
BARE_RATIO = 3
"""The bare subscriber has a third of the time of the agent."""


class RepeatedBursts:
    """Bursts of frames of a part of the workers, built once: only sequences and times differ between rounds.

    Args:
        fleet: The workers, which have reported fewer than 1,000 samples each.
        root: Root of the subjects.
    """

    def __init__(self, fleet: BenchFleet, root: str) -> None:
        burst = fleet.burst(WORKERS, SAMPLES).replace(f"PUB {ROOT}.".encode(), f"PUB {root}.".encode())
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


class Stretch(Struct, frozen=True):
    """A part of the load that one subscriber has taken."""

    delays_ms: list[int]
    late_ms: list[float]
    """Time between when each burst was due and when it was sent."""
    sending_s: float
    core_wait: float

    @property
    def p99_ms(self) -> float:
        """Delay within which 99 of 100 frames were taken."""
        return percentile(self.delays_ms, 0.99)


class Side(Struct):
    """A subscriber, its frames, and what it has taken."""

    child: ProbedProcess
    source: RepeatedBursts
    stretches: list[Stretch] = []

    def take(self, wire: RawPublisher, bursts: int, interval_s: float) -> None:
        """Send bursts at an interval, and wait until all are taken."""
        child, late_ms = self.child, list[float]()
        before = child.sample()
        delays_ms, waited_s, began_s = list[int](), child.core_wait_s(), time.monotonic()
        for number in range(bursts):
            due_s = began_s + number * interval_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            late_ms.append((time.monotonic() - due_s) * 1e3)
            wire.send(self.source.next())
            if number % 100 == 0:
                delays_ms += child.sample().delays_ms
        sending_s = time.monotonic() - began_s
        core_wait = (child.core_wait_s() - waited_s) / sending_s

        def has_taken_all(sample: ProbeSample) -> bool:
            delays_ms.extend(sample.delays_ms)
            return sample.frames + sample.lost - before.frames - before.lost >= bursts * BURST

        child.wait(has_taken_all)
        self.stretches.append(Stretch(delays_ms, late_ms, sending_s, core_wait))

    def result(self) -> dict[str, object]:
        """Return delays, lateness of the publisher and waits for a core, over all and by stretch."""
        stretches = self.stretches
        delays = [delay for one in stretches for delay in one.delays_ms]
        return {
            "delay_ms": {"p50": percentile(delays, 0.5), "p99": percentile(delays, 0.99), "max": max(delays)},
            "p99_ms": [one.p99_ms for one in stretches],
            "late_ms": [round(percentile(one.late_ms, 0.99), 1) for one in stretches],
            "core_wait": [round(one.core_wait, 3) for one in stretches],
        }


def bare_rate(wire: RawPublisher, bare: Side) -> float:
    """Return the median rate of frames of the bare subscriber."""
    rounds = (b"".join(bare.source.next() for _ in range(2 * WORKERS // BURST)) for _ in range(TRIALS))
    return statistics.median(ingest_speed(wire, bare.child, frames, 2 * WORKERS).per_s for frames in rounds)


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, seconds = (1, QUICK_S) if options(__doc__) else (MINUTES, MINUTE_S)
    fleet = BenchFleet(MODELS, WORKERS)
    with rig() as servers, RawPublisher(servers.nats.port) as wire:
        asyncio.run(servers.register(fleet.records, "agent"))
        with subscriber(servers, delays=True) as other:
            other.wait(lambda sample: sample.ready)
            bare = Side(other, RepeatedBursts(fleet, BARE_ROOT))
            rate = bare_rate(wire, bare)
            with agent(servers, fleet, delays=True) as child:
                warm(fleet, wire, child)
                loaded, before, early_mb = Side(child, RepeatedBursts(fleet, ROOT)), child.sample(), 0.0
                interval_s = BURST / (rate * SHARE)
                bursts = round(seconds / interval_s)
                for number in range(1, rounds + 1):
                    loaded.take(wire, bursts, interval_s)
                    bare.take(wire, bursts // BARE_RATIO, interval_s)
                    if number <= max(1, rounds // 5):
                        early_mb = child.memory_mb()[0]
                    progress(
                        f"round {number}/{rounds}: p99 {loaded.stretches[-1].p99_ms} ms,"
                        f" bare {bare.stretches[-1].p99_ms} ms"
                    )
                end, memory_mb = child.sample(), child.memory_mb()[0]
    per_s = rounds * bursts * BURST / sum(one.sending_s for one in loaded.stretches)
    line = {
        "name": "steady",
        "samples_per_s": round(per_s * SAMPLES),
        "share_of_bare": round(per_s / rate, 2),
        "seconds": round(rounds * seconds),
        **loaded.result(),
        "bare": bare.result(),
        "lost": end.lost - before.lost + end.journal_lost,
        "memory_mb": [round(early_mb, 1), round(memory_mb, 1)],
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
