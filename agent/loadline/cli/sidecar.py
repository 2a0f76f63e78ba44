"""Command ``sidecar``: an inference engine as a worker."""

import argparse
import os
import socket
from typing import Final, get_args
from urllib.parse import urlsplit

from loadline.adapters import logs, signals
from loadline.cli import event_loop
from loadline.cli.connection import connection_arguments, connection_of
from loadline.cli.option_types import name, seconds, whole_number
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role
from loadline.engine_metrics.tables import ENGINES
from loadline.errors import ConfigError
from loadline.sidecar.options import SidecarOptions
from loadline.sidecar.sidecar import Sidecar

COUNT_MAX: Final = 4_096
GRACE_MAX_S: Final = 86_400.0
PID_MAX: Final = 2**22
_EXAMPLES: Final = """examples:
  loadline sidecar --url http://127.0.0.1:8000 --advertise http://10.0.0.7:8000
  loadline sidecar --gpus 2 -- vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``sidecar``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    _description_arguments(parser)
    add(
        "--report-traffic",
        action="store_true",
        help="report the engine's requests as traffic too, for fleets where nothing else does",
    )
    add(
        "--grace-s",
        type=seconds(GRACE_MAX_S),
        default=30.0,
        metavar="S",
        help="time for running requests to end when the sidecar is stopped (default: %(default)g)",
    )
    connection_arguments(parser, "read servers, logins, root and namespace from the agent's configuration")
    add(
        "--pid",
        type=whole_number(PID_MAX),
        help="process of a running engine, to end it once it is drained, as an engine of -- COMMAND",
    )
    add("engine_command", nargs="*", metavar="-- COMMAND", help="start this engine, and end it when it is drained")


def _description_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe the engine and its worker."""
    add = parser.add_argument
    add("--engine", choices=sorted(ENGINES), default="vllm", help="engine (default: %(default)s)")
    add("--url", type=_url, default="http://127.0.0.1:8000", help="HTTP API of the engine (default: %(default)s)")
    add("--advertise", type=_url, default="", metavar="URL", help="HTTP API as routers reach it (default: --url)")
    add(
        "--model",
        type=name,
        default="",
        metavar="NAME",
        help="name of the model (default: the one that the engine serves)",
    )
    add("--pool", type=name, default="", metavar="NAME", help="name of the pool (default: the role)")
    add("--role", choices=get_args(Role), default="aggregated", help="role of the worker (default: %(default)s)")
    add(
        "--worker",
        type=name,
        default="",
        metavar="NAME",
        help="unique name of the worker (default: host name and port)",
    )
    add(
        "--gpus",
        type=whole_number(COUNT_MAX),
        default=1,
        metavar="N",
        help="GPUs that the engine occupies (default: %(default)s)",
    )
    add("--accelerator", type=name, default="", metavar="NAME", help="type of the GPUs, such as h100")
    add("--node", type=name, default="", metavar="NAME", help="machine (default: host name)")
    add("--unit", type=name, default="", metavar="NAME", help="group of workers that fails together")
    add(
        "--max-batch-requests",
        type=whole_number(COUNT_MAX),
        metavar="N",
        help="largest batch (default: as the engine or its command says)",
    )


def sidecar(options: argparse.Namespace) -> int:
    """Run until the worker is drained or stopped."""
    if options.report_traffic and options.role != "aggregated":
        remedy = "Report traffic in front of the engines: each request passes two of these."
        raise ConfigError("--report-traffic", f"does not work in role {options.role}", remedy)
    if options.pid is not None and options.engine_command:
        raise ConfigError("--pid", "has no effect on an engine that is started here", "Leave it out.")
    logs.configure("auto", "info")
    event_loop.run(_run(_options(options)))
    return 0


async def _run(options: SidecarOptions) -> None:
    program = Sidecar(options)
    signals.install_handlers(program.stop)
    await program.run()


def _options(options: argparse.Namespace) -> SidecarOptions:
    host = socket.gethostname()
    connection = connection_of(options)
    return SidecarOptions(
        engine=options.engine,
        url=options.url,
        advertise=options.advertise,
        model=options.model,
        pool=options.pool,
        role=options.role,
        worker=options.worker or f"{host}-{urlsplit(options.url).port or 80}",
        gpus=options.gpus,
        accelerator=options.accelerator,
        node=options.node or host,
        unit=options.unit,
        max_batch_requests=options.max_batch_requests,
        report_traffic=options.report_traffic,
        command=tuple(options.engine_command),
        pid=options.pid,
        # The kubelet restarts each container of a Deployment that ends, even with exit code 0.
        wait_after_drain="KUBERNETES_SERVICE_HOST" in os.environ,
        grace_s=options.grace_s,
        root=connection.root,
        namespace=connection.namespace,
        nats=connection.nats,
        etcd=connection.etcd,
    )


def _url(text: str) -> str:
    record = WorkerRecord("m", "p", "w", "aggregated", 0, address=text)
    if text and not record.base_url:  # empty is the default
        raise argparse.ArgumentTypeError(f"{text!r} is not a base URL; write http://host:port")
    return record.base_url
