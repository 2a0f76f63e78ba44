"""Actions of the local scaler: they read its configuration and its state file, which the scaler alone writes."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from loadline.adapters.process_identity import identify
from loadline.core.vocabulary.decisions import VictimRule
from loadline.errors import ConfigError
from loadline.scalers.local.config import LocalKnobs, read
from loadline.scalers.local.host import installed_gpus
from loadline.scalers.local.pools import pools_of
from loadline.scalers.local.state_file import SavedState, SavedWorker, StateFile
from loadline.scalers.platform import PlatformError, PoolKey, PoolObservation

__all__ = ["LocalPlatform", "connect", "read"]

_POLL_S: Final = 1.0


@asynccontextmanager
async def connect(knobs: LocalKnobs) -> AsyncIterator["LocalPlatform"]:
    """Yield the platform of a configuration."""
    yield LocalPlatform(knobs)


class LocalPlatform:
    """Processes of this host, as the state file lists them.

    Args:
        knobs: Configuration of the scaler.
    """

    def __init__(self, knobs: LocalKnobs) -> None:
        self._knobs = knobs
        self._pools = {PoolKey(*key): pool.knobs for key, pool in pools_of(knobs).items()}

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        """Configured pools: the scaler ends the workers that a decision names."""
        return dict.fromkeys(self._pools, "named")

    async def validate(self) -> Sequence[str]:
        """Return what would keep the scaler from starting workers."""
        problems = []
        for key, pool in self._pools.items():
            program, path = pool.command[0], pool.env.get("PATH")
            if "{" not in f"{program}{path}" and shutil.which(program, path=path) is None:
                remedy = "Install it, or name its path."
                problems.append(f"{key.model} {key.pool}: {program} is no program of this host. {remedy}")
        if self._knobs.sidecar_config and not os.access(self._knobs.sidecar_config, os.R_OK):
            problems.append(f"sidecar_config: {self._knobs.sidecar_config} cannot be read. Correct the path.")
        try:
            if self._knobs.gpus == "auto":
                installed_gpus()
            if self._knobs.state_file:
                self._saved()
        except ConfigError as error:
            problems.append(str(error))
        return problems

    async def observe(self, pool: PoolKey) -> PoolObservation:
        """Return the workers of a pool that run."""
        if not self._knobs.state_file:
            raise PlatformError("state_file is not set, so nothing lists the workers. Set it, or ask: loadline status")
        listed = [one for one in self._saved().workers if (one.model, one.pool) == (pool.model, pool.pool)]
        seen = [one.process for one in listed if _runs(one)]
        ended = ", ".join(one.process.worker for one in listed if not _runs(one))
        return PoolObservation(
            sum(not process.leaving for process in seen),
            workers=frozenset(process.worker for process in seen),
            ending=frozenset(process.worker for process in seen if process.leaving),
            detail=f"ended, and no scaler noticed: {ended}" if ended else "",
        )

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:  # noqa: ARG002 - refused for all
        """Refuse: the scaler alone writes the state file."""
        raise _read_only()

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:  # noqa: ARG002 - refused for all
        """Refuse: the scaler alone writes the state file."""
        raise _read_only()

    async def changed(self) -> None:
        """Wait until it is time to observe again."""
        await asyncio.sleep(_POLL_S)

    def _saved(self) -> SavedState:
        return StateFile(Path(self._knobs.state_file), f"{self._knobs.root}/{self._knobs.name}").read()


def _read_only() -> PlatformError:
    return PlatformError(
        "only the running scaler starts and ends processes of this host, since it alone writes the state file. "
        "Set replicas_min and replicas_max of the pool in the agent's configuration."
    )


def _runs(saved: SavedWorker) -> bool:
    """Return True if a worker runs, or if only circusd could tell."""
    if saved.identity is None:
        return True
    try:
        return identify(saved.identity.pid) == saved.identity
    except ProcessLookupError:
        return False
