"""Command ``scaler``."""

import argparse
import asyncio
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from loadline.adapters import logs
from loadline.cli.exit_codes import reports_input_errors
from loadline.cli.packages import require_extra
from loadline.scalers import local, observed

_KEDA_PACKAGES: Final = ("grpc", "grpc_health", "grpc_reflection", "google.protobuf")


async def _serve_keda(path: Path, only: Sequence[str]) -> None:
    require_extra("scaler", "keda", _KEDA_PACKAGES)
    await import_module("loadline.scalers.keda").serve(path, only)


_SCALERS: Final = {"local": local.serve, "observed": observed.serve, "keda": _serve_keda}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``scaler``."""
    parser.add_argument(
        "name",
        choices=tuple(_SCALERS),
        help="local: workers are processes of this host; observed: another autoscaler applies the decisions; "
        "keda: the same for KEDA, which gets the desired replicas from it",
    )
    text = "configuration of the scaler; for observed, that of the agent (TOML)"
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help=text)
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help="only this model; repeatable")


@reports_input_errors
def scaler(options: argparse.Namespace) -> int:
    """Apply decisions until stopped by a signal."""
    logs.configure("auto", "info")
    asyncio.run(_SCALERS[options.name](options.config, options.model))
    return 0
