"""Command ``source``."""

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from loadline.adapters import logs, signals
from loadline.cli import event_loop
from loadline.cli.extras import require_extra


class _Source(Struct, frozen=True):
    """Functions that read the configuration of a source and run it, and the packages that it needs."""

    read: str
    run: str
    packages: tuple[str, ...] = ()


_SOURCES: Final = {
    "dynamo": _Source("dynamo_config.read_dynamo", "dynamo.run_dynamo", ("zmq",)),
    "llumnix": _Source("llumnix_config.read_llumnix", "llumnix.run_llumnix", ("redis", "grpc", "google.protobuf")),
    "gateway": _Source("gateway_config.read_gateway", "gateway.run_gateway"),
    "prometheus": _Source("prometheus_config.read_prometheus", "prometheus.run_prometheus"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``source``."""
    parser.add_argument("name", choices=tuple(_SOURCES), help="system whose figures are read")
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="configuration of the source (TOML); see its guide"
    )


def source(options: argparse.Namespace) -> int:
    """Run a source until it is stopped by a signal."""
    chosen = _SOURCES[options.name]
    require_extra("source", options.name, chosen.packages)
    knobs = _function(chosen.read)(options.config)
    logs.configure("auto", "info")
    event_loop.run(_run(_function(chosen.run), knobs))
    return 0


async def _run(run: Callable[[Any, asyncio.Event], Coroutine[Any, Any, None]], knobs: object) -> None:
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    await run(knobs, stop)


def _function(place: str) -> Any:
    """Import a function of a source, such as ``dynamo.run_dynamo``: the others' packages may be missing."""
    module, _, name = place.partition(".")
    return getattr(import_module(f"loadline.sources.{module}"), name)
