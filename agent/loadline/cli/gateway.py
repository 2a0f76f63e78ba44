"""Command ``gateway``: an OpenAI-compatible reverse proxy in front of registered engines."""

import argparse
import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from loadline.adapters import logs, signals
from loadline.config import AgentKnobs, load
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.errors import LoadlineError
from loadline.gateway import server
from loadline.gateway.options import GatewayOptions
from loadline.servers import EtcdKnobs, NatsKnobs, check_servers


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``gateway``."""
    add = parser.add_argument
    add(
        "--model",
        action="append",
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
    add("--name", default="", help="name in traffic reports, its own for each gateway (default: <host name>-<port>)")
    add("--ttft-ms", type=_positive, help="TTFT objective, to report attainment; with --itl-ms (default: of --config)")
    add("--itl-ms", type=_positive, help="ITL objective, to report attainment; with --ttft-ms (default: of --config)")
    add("--held-max", type=_count, default=1_000, help="requests of a model that wait (default: %(default)s)")
    add(
        "--hold-s",
        type=_positive,
        default=300.0,
        help="time that a request waits for a worker, then it gets 503 (default: %(default)g)",
    )
    add("--body-bytes-max", type=_count, default=33_554_432, help="largest body of a request (default: %(default)s)")
    connection = parser.add_argument_group("connection")
    connection.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read servers, logins, root, namespace, models and objectives from the agent's configuration",
    )
    connection.add_argument("--nats", metavar="URL", help="NATS server (default: nats://127.0.0.1:4222)")
    connection.add_argument("--etcd", metavar="URL", help="etcd endpoint (default: http://127.0.0.1:2379)")
    connection.add_argument("--root", help="prefix of every NATS subject (default: loadline)")
    connection.add_argument("--namespace", help="etcd keys are under /loadline/<namespace>/ (default: default)")


def gateway(options: argparse.Namespace) -> int:
    """Serve until stopped by a signal."""
    logs.configure("auto", "info")
    asyncio.run(_run(_options(options)))
    return 0


async def _run(options: GatewayOptions) -> None:
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    models = ", ".join(options.objectives)
    await server.run(options, stop, lambda host, port: print(f"serves {models} at http://{host}:{port}", flush=True))


def _options(options: argparse.Namespace) -> GatewayOptions:
    nats, etcd, agent = NatsKnobs(), EtcdKnobs(), AgentKnobs()
    configured: Mapping[str, ObjectiveKnobs] = {}
    if options.config is not None:
        config = load(options.config)
        nats, etcd, agent = config.nats, config.etcd, config.agent
        configured = {model.name: model.objectives for model in config.models}
    if options.nats:
        nats = replace(nats, servers=(options.nats,))
    if options.etcd:
        etcd = replace(etcd, endpoints=(options.etcd,))
    check_servers(nats.servers, "--nats", ("nats", "tls"))
    check_servers(etcd.endpoints, "--etcd", ("http", "https"))
    models = options.model or list(configured)
    if not models:
        raise LoadlineError("no model is named: add --model NAME or --config FILE")
    if (options.ttft_ms is None) != (options.itl_ms is None):
        raise LoadlineError("--ttft-ms and --itl-ms go together")
    given = None if options.ttft_ms is None else ObjectiveKnobs(options.ttft_ms, options.itl_ms)
    host, port = options.listen
    return GatewayOptions(
        {name: given or configured.get(name) for name in models},
        host=host,
        port=port,
        name=options.name or f"{socket.gethostname()}-{port}",
        nats=nats,
        etcd=etcd,
        root=options.root or agent.root,
        namespace=options.namespace or agent.namespace,
        held_max=options.held_max,
        hold_s=options.hold_s,
        body_bytes_max=options.body_bytes_max,
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004 - the largest port
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port, such as 127.0.0.1:8080 or [::]:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value
