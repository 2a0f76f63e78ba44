"""Publish load events to a running agent, to see its reaction.

one sample of a registered worker, or of one that is registered in etcd while this runs:
  python tools/inject.py sample --worker w-7 --incarnation 1700000000000 --kv-usage 0.95 --waiting 3
  python tools/inject.py sample --register --kv-usage 0.95 --waiting 3 --for 60

a shape over time, two samples per second:
  python tools/inject.py shape ramp --register --field kv-usage --from 0.1 --to 0.95 --period 60 --for 120 --hz 2
  python tools/inject.py shape spike --register --role prefill --pool prefill --field waiting --to 20 --period 30

the arrivals of a trace (arrival_s,isl,osl; CSV or CSV.gz) as traffic reports, ten times as fast:
  python tools/inject.py trace requests.csv.gz --speed 10
"""

import argparse
import asyncio
import math
import signal
import sys
import time
from pathlib import Path
from typing import Final, get_args

import msgspec

from loadline.adapters.logs import configure
from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role
from loadline.demo.inject import SHAPES, InjectionTarget, SampleAt, inject_load, inject_trace, sample_of, shape_value
from loadline.errors import BusUnavailable, LoadlineError

FIELDS: Final[dict[str, str]] = {
    "kv-usage": "kv_usage_ratio",
    "waiting": "waiting_requests",
    "running": "running_requests",
    "queued-prefill-tokens": "queued_prefill_tokens",
    "ttft-ms": "ttft_ms",
    "itl-ms": "itl_ms",
}
"""Fields of ``WorkerSample`` by flag."""
FRACTIONAL: Final = {"kv-usage", "ttft-ms", "itl-ms"}


def positive(text: str) -> float:
    """Parse a finite number above 0, for argparse."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", default="llama", help="served model (default: %(default)s)")
    common.add_argument("--nats", default="nats://127.0.0.1:4222", metavar="URL", help="default: %(default)s")
    common.add_argument("--root", default="loadline", help="first tokens of the subjects (default: %(default)s)")
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
    load.add_argument(
        "--incarnation", type=int, default=time.time_ns() // 1_000_000, help="default: the Unix time in ms"
    )
    load.add_argument("--hz", type=positive, default=1.0, help="samples per second (default: %(default)s)")
    load.add_argument("--for", dest="seconds", type=positive, metavar="S", help="duration; default: see the command")
    for flag in FIELDS:
        load.add_argument(f"--{flag}", type=float if flag in FRACTIONAL else int, help=f"sets {FIELDS[flag]}")
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    text = "send one sample; with --register, repeat it until --for or Ctrl-C"
    commands.add_parser("sample", parents=[common, load], help=text, description=text)
    text = "vary a field over time, for one period unless --for is given"
    shape = commands.add_parser("shape", parents=[common, load], help=text, description=text)
    shape.add_argument("shape", choices=SHAPES)
    shape.add_argument("--field", default="kv-usage", choices=FIELDS, help="default: %(default)s")
    shape.add_argument("--from", dest="low", type=float, default=0.0, help="default: %(default)s")
    shape.add_argument("--to", dest="high", type=float, default=1.0, help="default: %(default)s")
    shape.add_argument("--period", type=positive, default=60.0, metavar="S", help="default: %(default)s")
    trace = commands.add_parser("trace", parents=[common], help="send the arrivals of a trace as traffic reports")
    trace.add_argument("file", type=Path)
    trace.add_argument("--frontend", default="injected", help="name of the frontend (default: %(default)s)")
    trace.add_argument("--speed", type=positive, default=1.0, help="speed factor (default: %(default)s)")
    trace.add_argument("--interval-ms", type=int, default=1_000, help="time between reports (default: %(default)s)")
    return top


def sampler(args: argparse.Namespace) -> SampleAt:
    """Return a function from the time to the sample of the flags.

    Raises:
        msgspec.ValidationError: A value is out of its bounds.
    """
    fixed = {field: getattr(args, flag.replace("-", "_")) for flag, field in FIELDS.items()}
    if args.command == "sample":
        sample_of(**fixed)
        return lambda _t_s: sample_of(**fixed)

    def at(value: float) -> dict[str, float | None]:
        return {**fixed, FIELDS[args.field]: value if args.field in FRACTIONAL else round(value)}

    for end in (args.low, args.high):
        sample_of(**at(end))
    return lambda t_s: sample_of(**at(shape_value(args.shape, t_s, args.period, args.low, args.high)))


async def run(args: argparse.Namespace) -> str:
    """Connect, inject the load and disconnect."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    bus = NatsBus(NatsKnobs(servers=(args.nats,)), name="loadline-inject")
    try:
        await bus.connect(lambda _connected: None)
        if not bus.connected:
            raise BusUnavailable(
                f"cannot connect to NATS at {args.nats} ({bus.last_error}). Start it, or name another one with --nats."
            )
        if args.command == "trace":
            to, pace = InjectionTarget(bus, root=args.root), {"speed": args.speed, "interval_ms": args.interval_ms}
            return await inject_trace(to, args.model, args.frontend, args.file, stop=stop, **pace)
        to = InjectionTarget(bus, args.etcd, args.root, args.namespace)
        record = WorkerRecord(args.model, args.pool, args.worker, args.role, args.incarnation)
        otherwise = args.period if args.command == "shape" else math.inf if args.register else 0.0
        span = {"hz": args.hz, "seconds": otherwise if args.seconds is None else args.seconds}
        return await inject_load(to, record, sampler(args), register=args.register, stop=stop, **span)
    finally:
        await bus.close()


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
