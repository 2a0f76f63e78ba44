"""Command ``gateway``: an OpenAI-compatible reverse proxy in front of registered engines."""

import argparse
import asyncio
import resource
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from loadline.adapters import logs, signals
from loadline.cli import event_loop
from loadline.cli.connection import connection_arguments, connection_of
from loadline.cli.option_types import name, positive, whole_number
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.errors import ConfigError
from loadline.gateway import server
from loadline.gateway.options import GatewayOptions
from loadline.toml.reading import read_table

_HELD_MAX: Final = 1_000_000
_HELD_BYTES_MAX: Final = 2**40
_BODY_BYTES_MAX: Final = 2**30


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``gateway``."""
    add = parser.add_argument
    add(
        "--model",
        action="append",
        type=name,
        default=[],
        metavar="NAME",
        help="served model; repeat it for several (default: all models of --config)",
    )
    add(
        "--listen",
        type=_address,
        default=("127.0.0.1", 8080),
        metavar="HOST:PORT",
        help="address to listen on; the gateway authenticates nobody (default: 127.0.0.1:8080)",
    )
    add(
        "--name",
        type=name,
        default="",
        help="name in traffic reports, its own for each gateway (default: <host name>-<port>)",
    )
    add(
        "--ttft-ms",
        type=positive,
        metavar="MS",
        help="TTFT objective, to report attainment; with --itl-ms (default: of --config)",
    )
    add(
        "--itl-ms",
        type=positive,
        metavar="MS",
        help="ITL objective, to report attainment; with --ttft-ms (default: of --config)",
    )
    _limit_arguments(parser)
    connection_arguments(
        parser, "read servers, logins, root, namespace, models and objectives from the agent's configuration"
    )


def _limit_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--held-max",
        type=whole_number(_HELD_MAX),
        default=1_000,
        metavar="N",
        help="requests of a model that wait (default: %(default)s)",
    )
    add(
        "--held-bytes-max",
        type=whole_number(_HELD_BYTES_MAX),
        default=268_435_456,
        metavar="BYTES",
        help="bytes of the bodies of these requests (default: %(default)s)",
    )
    add(
        "--hold-s",
        type=positive,
        default=300.0,
        metavar="S",
        help="time that a request waits for a worker, then it gets 503 (default: %(default)g)",
    )
    add(
        "--stall-s",
        type=positive,
        default=60.0,
        metavar="S",
        help="time for which an engine may send nothing but comments once it streams tokens, then another one continues"
        " the stream; if none can, ten times as long without any byte (default: %(default)g)",
    )
    add(
        "--first-byte-s",
        type=positive,
        metavar="S",
        help="time that an engine has until the first byte of an answer, then the request gets 504; that of an answer"
        " which is not streamed comes after its whole generation (default: no limit)",
    )
    add(
        "--body-bytes-max",
        type=whole_number(_BODY_BYTES_MAX),
        default=33_554_432,
        metavar="BYTES",
        help="largest body of a request (default: %(default)s)",
    )


def gateway(options: argparse.Namespace) -> int:
    """Serve until stopped by a signal."""
    logs.configure("auto", "info")
    allow_connections()
    event_loop.run(_run(_options(options)))
    return 0


def allow_connections() -> None:
    """Raise the limit of open files as far as the system permits: 1,024, a common default, are 500 streams."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(options: GatewayOptions) -> None:
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    models = ", ".join(options.objectives)
    await server.run(options, stop, lambda host, port: print(f"serves {models} at http://{host}:{port}", flush=True))


def _options(options: argparse.Namespace) -> GatewayOptions:
    connection = connection_of(options)
    configured: Mapping[str, ObjectiveKnobs] = {}
    if options.config is not None and not (options.model and options.ttft_ms):
        configured = _objectives(options.config)
    models = options.model or list(configured)
    if not models or "" in models:
        raise ConfigError("--model", "no model is named", "Write --model NAME, or name models in --config FILE.")
    if (options.ttft_ms is None) != (options.itl_ms is None):
        given_one, other = ("--ttft-ms", "--itl-ms") if options.itl_ms is None else ("--itl-ms", "--ttft-ms")
        raise ConfigError(given_one, f"has no effect without {other}", "Give both, or none.")
    given = None if options.ttft_ms is None else ObjectiveKnobs(options.ttft_ms, options.itl_ms)
    host, port = options.listen
    return GatewayOptions(
        {model: given or configured.get(model) for model in models},
        host=host,
        port=port,
        name=options.name or f"{socket.gethostname()}-{port}",
        nats=connection.nats,
        etcd=connection.etcd,
        root=connection.root,
        namespace=connection.namespace,
        held_max=options.held_max,
        held_bytes_max=options.held_bytes_max,
        hold_s=options.hold_s,
        stall_s=options.stall_s,
        first_byte_s=options.first_byte_s,
        body_bytes_max=options.body_bytes_max,
    )


def _objectives(path: Path) -> Mapping[str, ObjectiveKnobs]:
    """Return the objectives of the models in an agent's configuration; none if the file has only the connection."""
    if "models" not in read_table(path):
        return {}
    # It takes 0.6 s and 20 MB, which a gateway with options of its own saves.
    from loadline.config import load  # noqa: PLC0415

    return {model.name: model.effective_objectives for model in load(path).models}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004 - the largest port
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port, such as 127.0.0.1:8080 or [::]:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)
