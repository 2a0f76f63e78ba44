"""Race: an agent and a bare subscriber take bursts of the same frames in turn, each in its own process."""

import asyncio
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
    progress,
    result,
    rig,
    subscriber,
    warm,
)


class Speed(Struct, frozen=True):
    """Speed at which a process takes frames."""

    per_s: float
    """Frames in a second of wall time, while the other processes of the benchmark compete for the cores."""
    cpu_s: float
    """Processor time of all its threads for one frame."""


def ingest_speed(wire: RawPublisher, child: ProbedProcess, burst: bytes, frames: int) -> Speed:
    """Publish a burst as fast as the server accepts it; return the speed at which the child took it."""
    before = child.sample()
    began_s = time.monotonic()
    wire.send(burst)
    after = child.wait(lambda sample: sample.frames + sample.lost >= before.frames + before.lost + frames)
    return Speed(frames / (after.taken_at_s - began_s), (after.cpu_s - before.cpu_s) / frames)


class Race(Struct):
    """Result of ``race`` by burst: samples per second, and processor time of a sample in us."""

    agent_rates: list[float] = []
    bare: list[float] = []
    agent_cpu_us: list[float] = []
    bare_cpu_us: list[float] = []
    lost: int = 0

    def result(self, name: str, unit: str) -> None:
        """Print the rates, and the processor time, which other programs of the machine change less."""
        ratios = (one / other for one, other in zip(self.bare_cpu_us, self.agent_cpu_us, strict=True))
        cpu = {
            "cpu_us": round(statistics.median(self.agent_cpu_us), 3),
            "bare_cpu_us": round(statistics.median(self.bare_cpu_us), 3),
            "cpu_ratio": round(statistics.median(ratios), 3),
        }
        result(name, unit, self.agent_rates, self.bare, **cpu, lost=self.lost)


def race(fleet: BenchFleet, frames: int, samples: int, *, rounds: int, bursts: int, cpu: int | None = None) -> Race:
    """Send bursts alternately to an agent and to a bare subscriber, each in its own process.

    A burst should stay below the 64 MiB that the server buffers for a slow consumer. Losses are computed from the
    sequences that the agent knows in the end, plus what it dropped, rejected or did not journal.
    """
    found = Race()
    for number in range(1, rounds + 1):
        with rig() as servers, RawPublisher(servers.nats.port) as wire:
            asyncio.run(servers.register(fleet.records, "agent"))
            with agent(servers, fleet, cpu=cpu) as child, subscriber(servers, cpu) as bare:
                warm(fleet, wire, child)
                bare.wait(lambda sample: sample.ready)
                for _ in range(bursts):
                    aside = fleet.burst(frames, samples).replace(f"PUB {ROOT}.".encode(), f"PUB {BARE_ROOT}.".encode())
                    others = ingest_speed(wire, bare, aside, frames)
                    found.bare.append(samples * others.per_s)
                    found.bare_cpu_us.append(others.cpu_s / samples * 1e6)
                    ours = ingest_speed(wire, child, fleet.burst(frames, samples), frames)
                    found.agent_rates.append(samples * ours.per_s)
                    found.agent_cpu_us.append(ours.cpu_s / samples * 1e6)
                end = child.sample()
                found.lost += fleet.sequences - end.sequences + end.lost + end.journal_lost
        rate, bare_rate, us, bare_us = (
            statistics.median(values[-bursts:])
            for values in (found.agent_rates, found.bare, found.agent_cpu_us, found.bare_cpu_us)
        )
        progress(
            f"round {number}/{rounds}: {rate:,.0f} samples/s and {us:.2f} us of processor time each,"
            f" bare {bare_rate:,.0f}/s and {bare_us:.2f} us, {found.lost} lost"
        )
    return found
