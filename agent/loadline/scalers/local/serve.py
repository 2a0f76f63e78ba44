"""Program of the local scaler."""

import asyncio
import os
import stat
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from loadline.adapters import logs, signals
from loadline.client.scaler import ScalerClient
from loadline.scalers.config_file import selected_models
from loadline.scalers.local.config import LocalKnobs, read
from loadline.scalers.local.launcher import ChildLauncher, Launcher
from loadline.scalers.local.scaler import LocalScaler
from loadline.scalers.local.state_file import StateFile

_log = logs.bounded("local_scaler")


async def serve(path: Path, only: Sequence[str], *, sidecar: bool = False) -> None:
    """Run until SIGTERM or SIGINT, for the models of a configuration or some of them.

    Args:
        path: Configuration file.
        only: Models; empty: all of them.
        sidecar: True if the workers of every pool get a sidecar.

    Raises:
        ConfigError: The configuration is invalid, or the state file cannot be used.
    """
    knobs = read(path, sidecar=sidecar)
    if knobs.state_file and not knobs.log_directory and any(map(_is_pipe, (1, 2))):
        _log.warning(
            "output_is_a_pipe",
            detail="workers that outlive this scaler end at their next line once nobody reads its output",
            remedy="Set log_directory.",
        )
    await run_scaler(knobs, only, ChildLauncher(outlive=bool(knobs.state_file)))


def _is_pipe(descriptor: int) -> bool:
    """Return True if a file descriptor is a pipe, as of `| tee`; the journal of systemd has a socket."""
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:  # it is closed
        return False


async def run_scaler(knobs: LocalKnobs, only: Sequence[str], launcher: Launcher) -> None:
    """Run with a launcher until SIGTERM or SIGINT."""
    models = selected_models(only, [model.name for model in knobs.models])
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    async with AsyncExitStack() as stack:
        state_file = None
        if knobs.state_file:
            state_file = stack.enter_context(StateFile(Path(knobs.state_file), f"{knobs.root}/{knobs.name}"))
        scaler = ScalerClient(knobs.name, models, nats=knobs.nats, root=knobs.root)
        await LocalScaler(knobs, await stack.enter_async_context(scaler), launcher, state_file).run(stop)
