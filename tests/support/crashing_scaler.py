"""Local scaler that kills itself between two of its steps; run ``scale`` in a process of its own.

The steps are those with an effect that outlives the scaler: a process is created, the state file is replaced, a process
is released, a signal is sent. It dies after one of them, which is before the next one. The scaler applies
``decision.json`` of its directory, receives a drain report of each victim, and ends with code 0 once the decision is
done. Its workers run on.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from loadline.adapters.child_process import GatedChild
from loadline.adapters.circus_client import CircusClient
from loadline.adapters.watched_process import WatchedProcess
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.scalers.local.circus import CircusLauncher
from loadline.scalers.local.config import read
from loadline.scalers.local.launcher import ChildLauncher, Launcher
from loadline.scalers.local.scaler import LocalScaler
from loadline.scalers.local.state_file import StateFile
from loadline.wire.codec import encode
from loadline.wire.messages import DecisionApplied, DrainReport
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.support.memory import MemoryBus

CALLS: Final = (
    (ChildLauncher, "create"),
    (CircusLauncher, "create"),
    (Path, "replace"),
    (GatedChild, "open_gate"),
    (CircusLauncher, "start"),
    (WatchedProcess, "send"),
)
CIRCUS: Final = "circus.sock"
"""Socket of a circusd in the directory; without it the scaler starts its workers itself."""
LATER: Final = 2**53
"""Incarnation later than any start."""


class Steps:
    """Counter of steps; at one of them the process is killed."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._passed = 0

    def install(self, owner: type, name: str) -> None:
        """Count the calls of a method, after each."""
        call: Any = getattr(owner, name)

        def counted(*args: object, **kwargs: object) -> object:
            result = call(*args, **kwargs)
            self._step()
            return result

        async def counted_coroutine(*args: object, **kwargs: object) -> object:
            result = await call(*args, **kwargs)
            self._step()
            return result

        setattr(owner, name, counted_coroutine if asyncio.iscoroutinefunction(call) else counted)

    def _step(self) -> None:
        self._passed += 1
        if self._passed == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def launching(directory: Path) -> Iterator[Launcher]:
    """Yield the launcher of a directory."""
    if not (directory / CIRCUS).exists():
        yield ChildLauncher(outlive=True)
        return
    client = CircusClient(f"ipc://{directory / CIRCUS}")
    try:
        yield CircusLauncher(client, "loadline/local")
    finally:
        client.close()


async def run(directory: Path) -> None:
    """Apply the decision of a directory."""
    knobs, stop, bus, subjects = read(directory / "local.toml"), asyncio.Event(), MemoryBus(), Subjects("loadline")
    number, target = msgspec.json.decode((directory / "decision.json").read_bytes(), type=tuple[int, PoolTarget])

    def on_applied(_subject: str, payload: bytes) -> None:
        if msgspec.json.decode(payload, type=DecisionApplied).status == "done":
            stop.set()

    async def drain() -> None:
        """Report the victims as drained, after a few turns."""
        await asyncio.sleep(0.1)
        for victim in target.victims:
            with (directory / "events").open("a", encoding="ascii") as events:
                events.write(f"drained {victim.worker}\n")
            report = DrainReport("m", "p", victim.worker, time.time_ns() // 1_000_000)
            await bus.publish(subjects.drained("m", "p", victim.worker), encode(report))

    await bus.subscribe(subjects.applied("m"), on_applied)
    async with ScalerClient("local", ["m"], bus=bus) as scaler:
        with StateFile(Path(knobs.state_file), "loadline/local") as state_file, launching(directory) as launcher:
            local = LocalScaler(knobs, scaler, launcher, state_file)
            await bus.publish(subjects.decision("m"), encode(decision(1, number, target)))
            draining = asyncio.create_task(drain())
            await asyncio.wait_for(local.run(stop), 30)
            await draining


def scale(directory: Path, step: int) -> None:
    """Apply the decision of a directory, and kill this process at a step; 0: at none."""
    steps = Steps(step)
    for owner, method in CALLS:
        steps.install(owner, method)
    asyncio.run(run(directory))
