"""Time from the announcement of a decision on NATS to the call that sets replicas.

The scaler and the agent that announces are in one process, beside a real NATS server. Each decision changes the count
of one pool; the next follows after it is done. The baseline is the lower bound of that path, an echo over NATS before
each decision. The platform is in memory, or that of a scaler's configuration: its pools are set to 1 and 2 in turn.

  python -m tools.bench.scaler [--quick] [--scaler kubernetes --config FILE]
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

from loadline.adapters import logs
from loadline.adapters.nats_bus import NatsBus
from loadline.client.resources import running
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget, VictimRule
from loadline.rig.server_processes import NatsServer
from loadline.scalers.driver import ReplicaScaler
from loadline.scalers.platform import Platform, PoolKey, PoolObservation
from loadline.servers import NatsKnobs
from loadline.wire.codec import decode_as, encode
from loadline.wire.messages import DecisionApplied, ScalingDecision
from loadline.wire.subjects import Subjects
from tools.bench.harness import percentile, progress, result

POOLS = 250
DECISIONS, QUICK_DECISIONS, ROUNDS = 200, 50, 3  # each takes 0.3 s: a pool is observed again before it is done
DONE_S = 120.0
SUBJECTS = Subjects("loadline")


class MemoryPools:
    """Platform whose replicas exist at once."""

    def __init__(self) -> None:
        self._replicas = {PoolKey(f"model-{number:04}", "decode"): 1 for number in range(POOLS)}

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        """All pools."""
        return dict.fromkeys(self._replicas, "unknown")

    async def validate(self) -> Sequence[str]:
        """Return no problem."""
        return []

    async def observe(self, pool: PoolKey) -> PoolObservation:
        """Return the replicas."""
        return PoolObservation(self._replicas[pool], self._replicas[pool])

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:
        """Set the replicas."""
        self._replicas[pool] = replicas

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:
        """Do nothing."""

    async def changed(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()


class TimedPlatform:
    """Platform that records when replicas were set, and when the platform had answered."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.called_s: dict[PoolKey, float] = {}
        self.answered_s: dict[PoolKey, float] = {}

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        """Pools of the platform."""
        return self._platform.victims

    async def validate(self) -> Sequence[str]:
        """Return the problems."""
        return await self._platform.validate()

    async def observe(self, pool: PoolKey) -> PoolObservation:
        """Return the state of a pool."""
        return await self._platform.observe(pool)

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:
        """Set replicas; record the times of the first call."""
        self.called_s.setdefault(pool, time.monotonic())
        await self._platform.set_replicas(pool, replicas)
        self.answered_s.setdefault(pool, time.monotonic())

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:
        """Pass on."""
        await self._platform.prefer_removal(pool, workers)

    async def changed(self) -> None:
        """Wait for a change."""
        await self._platform.changed()


class Announcer:
    """Agent that announces one decision after the other, and waits until each is done."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus
        self._done = asyncio.Event()
        self._sequence = 0

    async def subscribe(self) -> None:
        """Subscribe to the answers and to the echo."""
        await self._bus.subscribe(SUBJECTS.all_of("applied"), self._on_answer)
        await self._bus.subscribe("echo", lambda _subject, _payload: self._done.set())

    async def echo_ms(self) -> float:
        """Return the time of a message over NATS."""
        self._done.clear()
        began_s = time.monotonic()
        await self._bus.publish("echo", bytes(300))
        async with asyncio.timeout(DONE_S):
            await self._done.wait()
        return (time.monotonic() - began_s) * 1e3

    async def announce(self, pool: PoolKey, replicas: int) -> float:
        """Announce a decision; return its time once it is done."""
        self._sequence += 1
        self._done.clear()
        target = PoolTarget(pool.pool, "decode", replicas, replicas, victim_rule="unknown")
        decision = ScalingDecision(
            decision_id=f"bench-{self._sequence}",
            model=pool.model,
            epoch=1,
            sequence=self._sequence,
            issued_at_ms=1,
            expires_at_ms=600_000,
            targets=(target,),
            reasons=(),
            ttl_ms=600_000,
        )
        payload, announced_s = encode(decision), time.monotonic()
        await self._bus.publish(SUBJECTS.decision(pool.model), payload)
        async with asyncio.timeout(DONE_S):
            await self._done.wait()
        return announced_s

    def _on_answer(self, _subject: str, payload: bytes) -> None:
        answer = decode_as(DecisionApplied, payload)
        if isinstance(answer, DecisionApplied) and (answer.status, answer.sequence) == ("done", self._sequence):
            self._done.set()


async def react(platform: Platform, url: str, decisions: int) -> tuple[list[float], list[float], list[float]]:
    """Return the times until a call, until its answer, and of echoes, in ms."""
    timed = TimedPlatform(platform)
    pools = sorted(timed.victims)
    counts = {pool: (await timed.observe(pool)).replicas for pool in pools}
    called_ms, answered_ms, echoes_ms = [], [], []
    nats = NatsKnobs(servers=(url,))
    bus = NatsBus(nats, name="bench")
    await bus.connect(lambda _connected: None)
    announcer = Announcer(bus)
    await announcer.subscribe()
    models = sorted({pool.model for pool in pools})
    try:
        async with (
            ScalerClient("bench", models, nats=nats) as scaler,
            running(ReplicaScaler(timed, scaler).run(asyncio.Event()), "scaler"),
        ):
            await asyncio.sleep(0.5)  # its subscriptions reach the server
            for number in range(decisions):
                pool = pools[number % len(pools)]
                counts[pool] = 1 if counts[pool] == 2 else 2  # noqa: PLR2004 - in turn
                echoes_ms.append(await announcer.echo_ms())
                timed.called_s.clear()
                timed.answered_s.clear()
                announced_s = await announcer.announce(pool, counts[pool])
                called_ms.append((timed.called_s[pool] - announced_s) * 1e3)
                answered_ms.append((timed.answered_s[pool] - announced_s) * 1e3)
    finally:
        await bus.close()
    return called_ms, answered_ms, echoes_ms


@asynccontextmanager
async def platform_of(name: str, config: Path | None) -> AsyncIterator[Platform]:
    """Yield the platform of a scaler, or the one in memory."""
    if config is None:
        yield MemoryPools()
        return
    module = import_module(f"loadline.scalers.{name}")
    async with module.connect(module.read(config)) as platform:
        yield platform


async def measure(name: str, config: Path | None, url: str, decisions: int, rounds: int) -> None:
    """Measure and print the results."""
    p50s, bare_p50s, called, answered, echoes = [], [], [], [], []
    async with platform_of(name, config) as platform:
        for number in range(1, rounds + 1):
            called_ms, answered_ms, echoes_ms = await react(platform, url, decisions)
            p50s.append(percentile(called_ms, 0.5))
            bare_p50s.append(percentile(echoes_ms, 0.5))
            called += called_ms
            answered += answered_ms
            echoes += echoes_ms
            progress(
                f"{name}, round {number}/{rounds}: p50 {p50s[-1]:.2f} ms, p99 {percentile(called_ms, 0.99):.2f} ms"
            )
    p99s = {"p99": called, "answered_p99": answered, "baseline_p99": echoes}
    more = {key: round(percentile(times, 0.99), 3) for key, times in p99s.items()}
    result(f"decision to replicas by {name}", "ms", p50s, bare_p50s, **more, decisions=len(called))


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer decisions")
    parser.add_argument("--scaler", default="memory", metavar="NAME", help="scaler whose platform is used")
    parser.add_argument("--config", type=Path, metavar="FILE", help="its configuration")
    chosen = parser.parse_args()
    logs.configure("auto", "error")
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as nats:
        decisions, rounds = (QUICK_DECISIONS, 1) if chosen.quick else (DECISIONS, ROUNDS)
        asyncio.run(measure(chosen.scaler, chosen.config, nats.url, decisions, rounds))


if __name__ == "__main__":
    main()
