"""Run the demo fleet on running servers, or simulated engines with an OpenAI-compatible API.

On servers it starts a gateway, and either fixed workers or the local scaler:

    python tools/fleet.py --nats nats://127.0.0.1:4222 --etcd http://127.0.0.1:2379 --workers 4
    python tools/fleet.py --nats ... --etcd ... --scaler     # follows a `loadline run` on the same servers
    python tools/fleet.py --openai --workers 3 --port 8000 --speed 2 --kv-blocks 500   # needs no servers

Ends with the trace, after --for seconds, or on Ctrl-C; prints a summary and leaves no process behind. With --openai,
all other options are those of `python -m loadline.demo.openai.server`.
"""

import argparse
import asyncio
import contextlib
import itertools
import signal
import sys
import tempfile
from pathlib import Path
from typing import Literal, get_args

from loadline.adapters.child_process import Child
from loadline.demo import defaults
from loadline.demo.lifetimes import gpu_hours
from loadline.demo.setup import ROLES, DemoSetup, Mode

_STOP_S = 8.0


class Processes:
    """Child processes, each with its own log; ``stop`` ends them all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, tuple[Child, asyncio.Event]] = {}

    def start(self, name: str, command: list[str]) -> asyncio.Event:
        """Start a process; return an event that is set at its end."""
        ended = asyncio.Event()

        def on_exit(code: int) -> None:
            del self._running[name]
            ended.set()
            print(f"{name} ended with {code}", file=sys.stderr)

        self._running[name] = Child(command, {}, self._directory / f"{name}.log", on_exit), ended
        return ended

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL to those that still run after 8 s."""
        kinds: tuple[Literal["terminate", "kill"], ...] = ("terminate", "kill")
        for kind in kinds:
            children = list(self._running.values())
            for child, _ in children:
                child.send(kind)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    for _, ended in children:
                        await ended.wait()


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(kind, stop.set)
    return stop


async def serve(options: argparse.Namespace, more: list[str], directory: Path) -> None:
    """Run engines with an OpenAI-compatible API on consecutive ports, until a signal or --for."""
    stop, engines = _stop_signal(), Processes(directory)
    try:
        for port in range(options.port, options.port + options.workers):
            module = (sys.executable, "-m", "loadline.demo.openai.server")
            engines.start(f"engine-{port}", [*module, "--port", str(port), *more])
            print(f"http://127.0.0.1:{port}", flush=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.for_s):
                await stop.wait()
    finally:
        await engines.stop()


async def run(options: argparse.Namespace, demo: DemoSetup) -> None:
    """Start the fleet, wait for its end, and stop all processes."""
    stop = _stop_signal()
    workers, rest = Processes(demo.directory), Processes(demo.directory)
    try:
        if options.scaler:
            config = demo.directory / "scaler.toml"
            config.write_text(demo.scaler_config(), encoding="utf-8")
            workers.start("scaler", demo.scaler_command(config))
        else:
            for role, number in itertools.product(ROLES[demo.mode], range(options.workers)):
                workers.start(f"{role}-{number}", demo.worker_command(role, f"{role}-{number}"))
        ended = rest.start("gateway", demo.gateway_command("--start-s", str(options.start_s)))
        waits = [asyncio.create_task(event.wait()) for event in (stop, ended)]
        await asyncio.wait(waits, timeout=options.for_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        await rest.stop()  # the summary needs the running workers
        await workers.stop()


def main() -> int:
    """Run the program; return its exit code."""
    description = (__doc__ or "").split("\n", maxsplit=1)[0]
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--nats", default="nats://127.0.0.1:4222")
    add("--etcd", default="http://127.0.0.1:2379")
    add("--root", default="loadline")
    add("--namespace", default="default")
    add("--mode", choices=get_args(Mode), default="disaggregated")
    add(
        "--trace-speed",
        type=int,
        default=defaults.TRACE_SPEED,
        help="how many times as fast the trace passes, with one of as many requests (default: %(default)s)",
    )
    add("--load", type=int, default=defaults.LOAD, help="superposed copies of the trace")
    add("--start-s", type=float, default=0.0, help="start within the trace, in seconds")
    add("--workers", type=int, default=defaults.WORKERS_MIN, help="number of fixed workers of each role, or engines")
    add("--scaler", action="store_true", help="no fixed workers; the local scaler follows a running agent")
    add("--openai", action="store_true", help="run engines with an OpenAI-compatible API and nothing else")
    add("--port", type=int, default=8_000, help="port of the first engine")
    add("--for", dest="for_s", type=float, help="stop after this many seconds")
    add("--directory", type=Path, help="folder for logs and the summary (default: temporary)")
    options, more = parser.parse_known_args()
    if more and not options.openai:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    with contextlib.ExitStack() as stack:
        directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        if options.openai:
            asyncio.run(serve(options, more, directory))
            return 0
        place = {"root": options.root, "namespace": options.namespace}
        load = {"trace_speed": options.trace_speed, "load": options.load}
        demo = DemoSetup(options.nats, options.etcd, directory.resolve(), options.mode, **load, **place)
        asyncio.run(run(options, demo))
        if not demo.summary_file.exists():
            print((directory / "gateway.log").read_text(), file=sys.stderr)
            return 1
        print(demo.summary_file.read_text(), end="")
        if options.scaler:
            print(f"GPU-hours: {gpu_hours(demo.lifetimes_file, demo.engine_speed):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
