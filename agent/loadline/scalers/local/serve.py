"""Program of the local scaler."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from loadline.adapters import signals
from loadline.client.scaler import ScalerClient
from loadline.scalers.config_file import selected_models
from loadline.scalers.local.config import LocalKnobs, read
from loadline.scalers.local.launcher import ChildLauncher, Launcher
from loadline.scalers.local.scaler import LocalScaler
from loadline.scalers.local.state_file import StateFile


async def serve(path: Path, only: Sequence[str], *, sidecar: bool = False) -> None:
    """Run until SIGTERM or SIGINT, for the models of a configuration or some of them.

    Args:
        path: Configuration file.
        only: Models; empty: all of them.
        sidecar: Whether the workers of every pool get a sidecar.

    Raises:
        ConfigError: The configuration is invalid, or the state file cannot be used.
    """
    knobs = read(path, sidecar=sidecar)
    await run_scaler(knobs, only, ChildLauncher(outlive=bool(knobs.state_file)))


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
