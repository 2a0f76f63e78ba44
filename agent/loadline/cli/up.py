"""Command ``up``: a demo on this machine."""

import argparse
import re
from pathlib import Path
from typing import get_args

from loadline.cli import event_loop
from loadline.cli.option_types import name, subject_root, whole_number
from loadline.demo import defaults, display
from loadline.demo.runner import run_demo
from loadline.demo.setup import Mode
from loadline.demo.stack import DemoOptions, DemoResult, run_directory
from loadline.errors import ConfigError
from loadline.formatting import ms, percent
from loadline.rig.server_processes import free_port
from loadline.servers import check_server, is_loopback

TRACE_SPEED_MAX = 1_000
COUNT_MAX = 64
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``up``."""
    add = parser.add_argument
    add(
        "--for",
        dest="for_s",
        type=_duration,
        default=0.0,
        metavar="TIME",
        help="stop after this time of load, such as 120s or 2m (default: until Ctrl-C)",
    )
    add(
        "--mode",
        choices=get_args(Mode),
        default="disaggregated",
        help="separate prefill and decode pools, or one aggregated pool (default: %(default)s)",
    )
    add(
        "--trace-speed",
        type=whole_number(TRACE_SPEED_MAX),
        default=defaults.TRACE_SPEED,
        metavar="N",
        help="how many times as fast the trace passes, with one of as many requests (default: %(default)s)",
    )
    add(
        "--load",
        type=whole_number(COUNT_MAX),
        default=defaults.LOAD,
        metavar="N",
        help="superposed copies of the trace (default: %(default)s)",
    )
    add(
        "--agents",
        type=whole_number(COUNT_MAX),
        default=1,
        metavar="N",
        help="number of agents, of which one leads (default: %(default)s)",
    )
    _server_arguments(parser)


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of servers, names, page and files."""
    add = parser.add_argument
    add("--attach-nats", default="", metavar="URL", help="use a running NATS server instead of starting one")
    add("--attach-etcd", default="", metavar="URL", help="use a running etcd instead of starting one")
    add(
        "--root", type=subject_root, default="loadline-demo", help="prefix of every NATS subject (default: %(default)s)"
    )
    add(
        "--namespace",
        type=name,
        default="demo",
        help="etcd keys are under /loadline/<namespace>/ (default: %(default)s)",
    )
    add(
        "--http-port",
        type=whole_number(65_535, minimum=0),
        metavar="PORT",
        default=0,
        help="port of the first agent's live page (default: a free one)",
    )
    add(
        "--directory",
        type=Path,
        help="folder for logs, data and journals (default: .loadline/up-<process id>; the last three are kept)",
    )


def up(options: argparse.Namespace) -> int:
    """Run the demo; return 0 when it ends normally."""
    if options.attach_nats:
        check_server(options.attach_nats, "--attach-nats", ("nats", "tls"))
    if options.attach_etcd:
        check_server(options.attach_etcd, "--attach-etcd", ("http", "https"))
        if options.attach_etcd.startswith("http://") and not is_loopback(options.attach_etcd):
            raise ConfigError("--attach-etcd", "is not encrypted", "Use https://, or an etcd of this machine.")
    demo = DemoOptions(
        directory=(options.directory or run_directory(Path(".loadline"))).resolve(),
        nats=options.attach_nats,
        etcd=options.attach_etcd,
        mode=options.mode,
        trace_speed=options.trace_speed,
        load=options.load,
        agents=options.agents,
        for_s=options.for_s,
        http_port=options.http_port or free_port(),
        root=options.root,
        namespace=options.namespace or "demo",
    )
    length = f"for {options.for_s:g} s" if options.for_s else "until Ctrl-C"
    header = f"loadline demo: {options.mode}, {options.load} copies of the trace at {options.trace_speed}x, {length}"
    outcome = event_loop.run(run_demo(demo, display.make_display(header)))
    if outcome is None:
        print("stopped before the load started")
    else:
        print(summary(*outcome, demo))
    return 0


def summary(result: DemoResult, decisions: int, options: DemoOptions) -> str:
    """Format the results of a run."""
    counts = result.requests
    ended = f"{counts.finished} served of {counts.arrived}, {counts.lost} lost"
    requests = f"{ended}, {counts.retried} retried, {counts.migrated} migrated"
    ttft = f"TTFT {defaults.TTFT_MS:g} ms ({_share(counts.ttft_attainment)})"
    itl = f"ITL {defaults.ITL_MS:g} ms ({_share(counts.itl_attainment)})"
    lines = [
        f"requests    {requests}, {counts.in_flight + counts.queued} unfinished at the end",
        f"SLO         {_share(counts.slo_attainment)} of requests met both: {ttft} and {itl}",
        f"TTFT        p50 {ms(counts.ttft_p50_ms)}, p95 {ms(counts.ttft_p95_ms)}, p99 {ms(counts.ttft_p99_ms)}",
        f"ITL         p50 {ms(counts.itl_p50_ms)}, p95 {ms(counts.itl_p95_ms)}, p99 {ms(counts.itl_p99_ms)}",
        f"GPU-hours   {result.gpu_hours:.2f} in {counts.virtual_s / 60:.1f} min",
        f"decisions   {decisions}",
        f"drains      {result.drains}",
        f"journal     loadline replay {options.directory / 'journal' / 'agent-1'}",
    ]
    return "\n".join(["", *lines])


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write 90s, 2m or 1h")
    return float(match[1]) * UNITS_S[match[2] or "s"]


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)
