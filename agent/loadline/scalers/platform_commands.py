"""Commands on a platform: run a scaler, and the verbs for operators and programs.

The verbs read and set replicas without the agent. While a scaler runs, it returns a pool to the replicas of the current
decision if they fall below.
"""

import asyncio
import time
from collections.abc import Sequence

from loadline.adapters import signals
from loadline.client.scaler import ScalerClient
from loadline.errors import ConfigError, LoadlineError
from loadline.scalers.config_file import ScalerKnobs, selected_models
from loadline.scalers.driver import ReplicaScaler
from loadline.scalers.platform import Platform, PoolKey, PoolObservation

_POLL_S = 1.0


async def run_scaler(knobs: ScalerKnobs, name: str, platform: Platform, only: Sequence[str]) -> None:
    """Apply decisions until SIGTERM or SIGINT, for the models of a platform or some of them.

    Raises:
        ConfigError: A model is not configured.
    """
    models = selected_models(only, _models(platform))
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    async with ScalerClient(name, models, nats=knobs.nats, root=knobs.root) as scaler:
        await ReplicaScaler(platform, scaler).run(stop)


async def observe_all(platform: Platform, only: Sequence[str] = ()) -> dict[PoolKey, PoolObservation]:
    """Return the state of all pools, or those of some models.

    Raises:
        ConfigError: A model is not configured.
        PlatformError: The platform cannot be asked.
    """
    models = selected_models(only, _models(platform))
    keys = sorted(key for key in platform.victims if key.model in models)
    return {key: await platform.observe(key) for key in keys}


async def set_replicas(platform: Platform, pool: PoolKey, replicas: int) -> int:
    """Request a number of replicas; return it.

    Raises:
        ConfigError: The pool is not configured.
        PlatformError: The platform refused.
    """
    _check_known(platform, pool)
    await platform.set_replicas(pool, replicas)
    return replicas


async def change_replicas(platform: Platform, pool: PoolKey, difference: int) -> int:
    """Request more or fewer replicas than now; return their number.

    Raises:
        ConfigError: The pool is not configured.
        LoadlineError: The pool has fewer than are to be removed, or the platform refused.
    """
    _check_known(platform, pool)
    now = (await platform.observe(pool)).replicas
    if now + difference < 0:
        raise LoadlineError(f"{pool.model} {pool.pool} has {now} replicas: {-difference} cannot be removed")
    return await set_replicas(platform, pool, now + difference)


async def wait_ready(platform: Platform, pools: Sequence[PoolKey], timeout_s: float) -> dict[PoolKey, PoolObservation]:
    """Wait until pools have as many ready replicas as requested.

    Returns:
        The pools that are not ready in time, with their states.

    Raises:
        PlatformError: The platform cannot be asked.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        states = {pool: await platform.observe(pool) for pool in pools}
        missing = {pool: seen for pool, seen in states.items() if not is_ready(seen)}
        left_s = deadline_s - time.monotonic()
        if not missing or left_s <= 0:
            return missing
        try:
            async with asyncio.timeout(min(left_s, _POLL_S)):
                await platform.changed()
        except TimeoutError:
            continue


def is_ready(seen: PoolObservation) -> bool:
    """Return True if a pool has as many replicas as requested and, where the platform can tell, all are ready."""
    workers = seen.replicas if seen.workers is None else len(seen.workers)
    # A rolling update has more ready replicas than requested.
    return seen.acknowledged and (seen.ready is None or seen.ready >= seen.replicas) and workers == seen.replicas


def _models(platform: Platform) -> list[str]:
    return sorted({key.model for key in platform.victims})


def _check_known(platform: Platform, pool: PoolKey) -> None:
    if pool not in platform.victims:
        known = ", ".join(f"{key.model} {key.pool}" for key in sorted(platform.victims))
        problem = f"the configuration has no pool {pool.model} {pool.pool}"
        raise ConfigError("MODEL POOL", problem, f"Choose from {known}.")
