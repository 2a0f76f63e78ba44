"""Publish load events to a running agent, to see its reaction.

one sample of a registered worker, or of one that is registered in etcd while this runs:
  python tools/inject.py sample --worker w-7 --incarnation 1700000000000 --kv-usage-ratio 0.95 --waiting-requests 3
  python tools/inject.py sample --register --kv-usage-ratio 0.95 --waiting-requests 3 --for 60

a shape over time, two samples per second:
  python tools/inject.py shape ramp --register --field kv-usage-ratio --from 0.1 --to 0.95 --period 60 --for 120 --hz 2
  python tools/inject.py shape spike --register --role prefill --pool prefill --field waiting-requests --to 20

what a frontend reports each second, and the arrivals of a trace (arrival_s,isl,osl; CSV or CSV.gz), ten times as fast:
  python tools/inject.py traffic --arrivals 9 --isl-tokens 812.5 --for 60
  python tools/inject.py traffic --arrivals 9 --isl-histogram '{"bounds": [1024], "counts": [9, 0]}'
  python tools/inject.py trace requests.csv.gz --speed 10

Every field of a sample has an option. A login may report for its own role only, as deploy/nats/loadline.conf allows:
  python tools/inject.py sample --nats-user worker-llama-decode --nats-password-file password --kv-usage-ratio 0.95
"""

import argparse
import asyncio
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from loadline.adapters.logs import configure
from loadline.adapters.nats_bus import NatsBus
from loadline.cli.option_types import positive
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.demo.field_options import add_field_options, field_values, flag_of, number_fields
from loadline.demo.inject import (
    SHAPES,
    InjectionTarget,
    SampleAt,
    inject_load,
    inject_trace,
    inject_traffic,
    shape_value,
    traffic_sample,
    worker_sample,
)
from loadline.errors import BusUnavailable, LoadlineError
from loadline.servers import EtcdKnobs, NatsKnobs, check_server

SHAPED: Final = {
    flag_of(name): (name, kind) for name, kind in number_fields(WorkerSample, {"sequence", "timestamp_ms"}).items()
}
"""Fields of a sample that may vary over time, by option, with their types."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", default="llama", help="served model (default: %(default)s)")
    common.add_argument("--nats", default="nats://127.0.0.1:4222", metavar="URL", help="default: %(default)s")
    common.add_argument("--root", default="loadline", help="first tokens of the subjects (default: %(default)s)")
    add_field_options(common, "login to NATS", NatsKnobs, prefix="nats-", without={"servers"})
    repeated = argparse.ArgumentParser(add_help=False)
    repeated.add_argument(
        "--incarnation", type=int, default=time.time_ns() // 1_000_000, help="default: the Unix time in ms"
    )
    repeated.add_argument("--hz", type=positive, default=1.0, help="samples per second (default: %(default)s)")
    repeated.add_argument(
        "--for", dest="seconds", type=positive, metavar="S", help="duration; default: see the command"
    )
    load = argparse.ArgumentParser(add_help=False)
    load.add_argument("--pool", default="decode", help="pool of the worker (default: %(default)s)")
    load.add_argument("--worker", default="injected", help="name of the worker (default: %(default)s)")
    load.add_argument("--role", default="decode", choices=get_args(Role), help="with --register (default: %(default)s)")
    load.add_argument(
        "--register", action="store_true", help="register the worker in etcd, with a lease, while this runs"
    )
    load.add_argument(
        "--etcd", default="http://127.0.0.1:2379", metavar="URL", help="with --register (default: %(default)s)"
    )
    load.add_argument(
        "--namespace", default="default", help="with --register: namespace of the keys (default: %(default)s)"
    )
    add_field_options(load, "login to etcd", EtcdKnobs, prefix="etcd-", without={"endpoints"})
    text = "fields of the sample; with --register, sequences are those of the worker"
    add_field_options(load, text, WorkerSample)
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    text = "send one sample; with --register, repeat it until --for or Ctrl-C"
    commands.add_parser("sample", parents=[common, repeated, load], help=text, description=text)
    text = "vary a field over time, for one period unless --for is given"
    shape = commands.add_parser("shape", parents=[common, repeated, load], help=text, description=text)
    shape.add_argument("shape", choices=SHAPES)
    shape.add_argument("--field", default="kv-usage-ratio", choices=SHAPED, help="default: %(default)s")
    shape.add_argument("--from", dest="low", type=float, default=0.0, help="default: %(default)s")
    shape.add_argument("--to", dest="high", type=float, default=1.0, help="default: %(default)s")
    shape.add_argument("--period", type=positive, default=60.0, metavar="S", help="default: %(default)s")
    text = "send a sample of a frontend; repeat it with --for"
    traffic = commands.add_parser("traffic", parents=[common, repeated], help=text, description=text)
    traffic.add_argument("--frontend", default="injected", help="name of the frontend (default: %(default)s)")
    add_field_options(traffic, "fields of the sample", TrafficSample)
    trace = commands.add_parser("trace", parents=[common], help="send the arrivals of a trace as traffic reports")
    trace.add_argument("file", type=Path)
    trace.add_argument("--frontend", default="injected", help="name of the frontend (default: %(default)s)")
    trace.add_argument("--speed", type=positive, default=1.0, help="speed factor (default: %(default)s)")
    trace.add_argument("--interval-ms", type=int, default=1_000, help="time between reports (default: %(default)s)")
    return top


def sampler(args: argparse.Namespace) -> SampleAt[WorkerSample]:
    """Return a function from the time to the sample of the options.

    Raises:
        msgspec.ValidationError: A value is out of its bounds.
    """
    fixed = field_values(args, WorkerSample)
    if args.command == "sample":
        worker_sample(**fixed)
        return lambda _t_s: worker_sample(**fixed)
    field, kind = SHAPED[args.field]

    def at(value: float) -> dict[str, Any]:
        return {**fixed, field: round(value) if kind is int else value}

    for end in (args.low, args.high):
        worker_sample(**at(end))
    return lambda t_s: worker_sample(**at(shape_value(args.shape, t_s, args.period, args.low, args.high)))


def traffic_sampler(args: argparse.Namespace) -> SampleAt[TrafficSample]:
    """Return a function to the traffic sample of the options, the same at all times.

    Raises:
        msgspec.ValidationError: A value is out of its bounds.
    """
    fixed = field_values(args, TrafficSample)
    traffic_sample(**fixed)
    return lambda _t_s: traffic_sample(**fixed)


async def run(args: argparse.Namespace) -> str:
    """Connect, inject the load and disconnect."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    check_server(args.nats, "--nats", ("nats", "tls"))
    knobs = msgspec.convert({"servers": [args.nats], **field_values(args, NatsKnobs, prefix="nats-")}, NatsKnobs)
    bus = NatsBus(knobs, name="loadline-inject")
    try:
        await bus.connect(lambda _connected: None)
        if not bus.connected:
            raise BusUnavailable(
                f"cannot connect to NATS at {args.nats} ({bus.last_error}). Start it, or name another one with --nats."
            )
        summary = await inject(args, bus, stop)
    finally:
        await bus.close()
    if bus.denied:
        raise BusUnavailable(f"NATS refused to publish: {bus.last_error}. Log in with --nats-user as the role needs.")
    return summary


async def inject(args: argparse.Namespace, bus: NatsBus, stop: asyncio.Event) -> str:
    """Inject the load of a command; return a summary."""
    if args.command == "trace":
        to, pace = InjectionTarget(bus, root=args.root), {"speed": args.speed, "interval_ms": args.interval_ms}
        return await inject_trace(to, args.model, args.frontend, args.file, stop=stop, **pace)
    if args.command == "traffic":
        to, names = InjectionTarget(bus, root=args.root), (args.model, args.frontend)
        span = {"hz": args.hz, "seconds": args.seconds or 0.0}
        return await inject_traffic(to, names, args.incarnation, traffic_sampler(args), stop=stop, **span)
    check_server(args.etcd, "--etcd", ("http", "https"))
    etcd = msgspec.convert({"endpoints": [args.etcd], **field_values(args, EtcdKnobs, prefix="etcd-")}, EtcdKnobs)
    to = InjectionTarget(bus, etcd, args.root, args.namespace)
    record = WorkerRecord(args.model, args.pool, args.worker, args.role, args.incarnation)
    otherwise = args.period if args.command == "shape" else math.inf if args.register else 0.0
    span = {"hz": args.hz, "seconds": otherwise if args.seconds is None else args.seconds}
    return await inject_load(to, record, sampler(args), register=args.register, stop=stop, **span)


def main() -> int:
    """Run the command line; return 0 on success, 1 on failure, 2 on invalid options."""
    args = parser().parse_args()
    configure("auto", "error")
    try:
        print(asyncio.run(run(args)))
    except (LoadlineError, msgspec.ValidationError) as error:
        print(f"inject: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
