"""Workers of the local scaler, by pool, and their form in the state file."""

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.decisions import PoolTarget
from loadline.scalers.local.config import LocalKnobs, LocalPoolKnobs
from loadline.scalers.local.host import Allotment
from loadline.scalers.local.launcher import WorkerProcess
from loadline.scalers.local.plan import Process, StartFailures
from loadline.scalers.local.state_file import SavedWorker

_CONNECT_S: Final = 0.5


class LocalWorker:
    """A worker: its planned state, its process and its part of the host."""

    def __init__(
        self, seen: Process, process: WorkerProcess, allotment: Allotment, gpus: int, end_reason: str = ""
    ) -> None:
        self.seen = seen
        self.process = process
        self.allotment = allotment
        self.gpus = gpus
        self.end_reason = end_reason

    def exit_reason(self, code: int | None) -> str:
        """Return the reason of its end, given the exit code if it is known."""
        if self.end_reason:
            return self.end_reason
        if self.seen.drained_ms is not None:
            return "drained"
        if self.seen.leaving:
            return "left"
        return "failed" if code else "exited"


class Failure(Struct, frozen=True):
    """Worker that could not be started, or ended although nobody requested it."""

    reason: str
    """Sentence with the worker, the problem and where to look."""
    lived_ms: int = 0
    """Time from its start to its end."""


def exit_failure(worker: str, code: int | None, lived_ms: int, log_path: Path | None) -> Failure:
    """Return the failure of a worker that exited.

    Args:
        worker: Its name.
        code: Exit code; negative: the signal that ended it; None: unknown.
        lived_ms: Time since its start.
        log_path: Its log; None: it has none.
    """
    how = "ended"
    if code is not None:
        how = f"exited with code {code}" if code >= 0 else f"was ended by signal {-code}"
    log = f": see {log_path}" if log_path else ""
    return Failure(f"{worker} {how}, {lived_ms / 1_000:.0f} s after its start{log}", lived_ms)


async def _accepts_connections(port: int) -> bool:
    """Return False if nothing listens on a port of this host; engines do so once their model is loaded."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    except OSError:  # as when a busy engine does not accept in time
        return True
    writer.close()
    return True


class LocalPool:
    """Workers and target of one pool."""

    def __init__(self, model: str, knobs: LocalPoolKnobs) -> None:
        self.model = model
        self.knobs = knobs
        self.workers: dict[str, LocalWorker] = {}
        self.target: PoolTarget | None = None
        self.drain_ttl_ms = 0
        self.failures = StartFailures()
        self.waits = ""
        """The reason why no further worker is started; empty: there is none."""
        self.logged_wait = ""
        """Reason that was logged last, since the last start of a worker."""
        self.failure: Failure | None = None
        """The last failure, until the pool has recovered."""

    @property
    def detail(self) -> str:
        """Return why workers are missing; empty: none is, or no reason is known."""
        reasons = [self.waits, self.failure.reason if self.failure else ""]
        return "; ".join(reason for reason in reasons if reason)

    def seen(self) -> list[Process]:
        """Return the states of its workers."""
        return [worker.seen for worker in self.workers.values()]

    async def unready_surplus(self) -> AbstractSet[str]:
        """Return the workers that accept no connections, if more stay than the target has: those end first."""
        staying = [worker for worker in self.workers.values() if not worker.seen.leaving]
        if self.target is None or len(staying) <= self.target.replicas:
            return frozenset()
        ready = await asyncio.gather(*(_accepts_connections(worker.allotment.port) for worker in staying))
        return {worker.seen.worker for worker, accepts in zip(staying, ready, strict=True) if not accepts}

    def saved(self) -> list[SavedWorker]:
        """Return its workers as the state file has them."""
        return [
            SavedWorker(
                model=self.model,
                pool=self.knobs.name,
                gpus=worker.gpus,
                process=worker.seen,
                allotment=worker.allotment,
                identity=worker.process.identity,
                end_reason=worker.end_reason,
            )
            for worker in self.workers.values()
        ]


def pools_of(knobs: LocalKnobs) -> Mapping[tuple[str, str], LocalPool]:
    """Return the configured pools by model and name."""
    return {(model.name, pool.name): LocalPool(model.name, pool) for model in knobs.models for pool in model.pools}
