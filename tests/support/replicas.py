"""Platform in memory: a controller that follows the requested replicas, and faults of its calls."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from loadline.core.vocabulary.decisions import VictimRule
from loadline.scalers.platform import PlatformError, PoolKey, PoolObservation

Fault = Callable[[str], None]
"""Called with the name of each call before and after it, such as ``set_replicas`` and ``set_replicas:done``."""
_CONTROLLER_S = 0.4


class ReplicaPool:
    """Pool of the platform: requested replicas, and the workers that its controller has created."""

    def __init__(self, rule: VictimRule, count: int) -> None:
        self.rule = rule
        self.replicas = count
        self.started = count
        self.workers = [f"w{number}" for number in range(count)]
        self.ending: set[str] = set()
        self.preferred: tuple[str, ...] = ()
        self.quota = 1_000
        self.detail = ""
        self.start_steps = 1
        """Steps of the controller in which a new worker is not ready."""
        self.starting: dict[str, int] = {}
        self.removed: list[str] = []

    def control(self) -> None:
        """Take one step towards the requested replicas."""
        for name in self.ending:
            self.workers.remove(name)
        self.ending.clear()
        self.starting = {name: left - 1 for name, left in self.starting.items() if name in self.workers and left > 1}
        while len(self.workers) < min(self.replicas, self.quota):
            number = len(self.workers) if self.rule == "highest_ordinal" else self.started
            self.workers.append(f"w{number}")
            self.starting[f"w{number}"] = self.start_steps
            self.started += 1
        surplus = len(self.workers) - self.replicas
        if surplus > 0:
            told = [name for name in self.preferred if name in self.workers and self.rule == "named"]
            order = [*told, *(name for name in reversed(self.workers) if name not in told)]
            if self.rule != "highest_ordinal":
                order.sort(key=lambda name: name not in self.starting)  # as ReplicaSets do
            self.ending.update(order[:surplus])
            self.removed += order[:surplus]


class MemoryPlatform:
    """Platform whose pools are in memory. Its controller runs with ``run``."""

    def __init__(self, pools: Mapping[PoolKey, ReplicaPool]) -> None:
        self.pools = dict(pools)
        self.calls: list[tuple[str, object]] = []
        self.fault: Fault = lambda _call: None
        self.problems: list[str] = []
        self.call_s = 0.01
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the requested replicas until cancelled."""
        while True:
            await asyncio.sleep(_CONTROLLER_S)
            for pool in self.pools.values():
                before = (*pool.workers, *pool.ending, *pool.starting)
                pool.control()
                if (*pool.workers, *pool.ending, *pool.starting) != before:
                    self.change()

    def change(self) -> None:
        """Report that something has changed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        return {key: pool.rule for key, pool in self.pools.items()}

    async def validate(self) -> Sequence[str]:
        return self.problems

    async def observe(self, pool: PoolKey) -> PoolObservation:
        await self._begin("observe", None)
        state = self.pools[pool]
        ready = len(set(state.workers) - state.ending - set(state.starting))
        self.fault("observe:done")
        return PoolObservation(
            state.replicas, ready, frozenset(state.workers), frozenset(state.ending), state.detail if ready else ""
        )

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:
        await self._begin("set_replicas", replicas)
        self.pools[pool].replicas = replicas
        self.fault("set_replicas:done")

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:
        await self._begin("prefer_removal", tuple(workers))
        self.pools[pool].preferred = tuple(workers)
        self.fault("prefer_removal:done")

    async def changed(self) -> None:
        await self._changed.wait()

    def requested(self) -> list[int]:
        """Return the arguments of all calls of ``set_replicas``."""
        return [argument for _, argument in self.calls if isinstance(argument, int)]

    async def _begin(self, name: str, argument: object) -> None:
        self.calls.append((name, argument))
        self.fault(name)
        await asyncio.sleep(self.call_s)


def refusing(text: str, *names: str) -> Fault:
    """Return the fault of a platform that refuses some calls."""

    def fault(call: str) -> None:
        if call in names:
            raise PlatformError(text)

    return fault


async def cancelled(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
