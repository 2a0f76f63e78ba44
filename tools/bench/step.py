"""Round trip of one step of `loadline step`: without events, and with the reports of 20 workers.

The baseline is a loop that only reads, parses and echoes the same JSON lines. Start-up is measured to the first answer.

  python -m tools.bench.step [--quick]
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Raw

from loadline.wire.steps import StepInput, StepItem, encode_step
from tools.bench.harness import BenchFleet, options, percentile, progress, result

WORKERS = 20
SPACING_MS = 50
ECHO = """
import json, sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(json.dumps(json.loads(line)).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""


class Child:
    """Process that answers each line with a line."""

    def __init__(self, command: list[str], first: bytes) -> None:
        began_s = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.ask_ms(first)
        self.start_s = time.monotonic() - began_s

    def ask_ms(self, line: bytes) -> float:
        """Return the time of an answer in ms."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process has no pipes")
        began_s = time.perf_counter()
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
        took_ms = (time.perf_counter() - began_s) * 1e3
        if "error" in json.loads(answer):
            raise RuntimeError(answer.decode())
        return took_ms

    def stop(self) -> None:
        """Close its stdin and wait for its end."""
        self._process.communicate()


def lines(steps: int) -> Iterator[tuple[bool, bytes]]:
    """Yield steps alternately without and with events, with a flag; the first one registers the workers."""
    fleet = BenchFleet(1, WORKERS)
    records = [StepItem(record=Raw(msgspec.json.encode(record))) for record in fleet.records]
    yield True, encode_step(StepInput(0, records)) + b"\n"
    for number in range(1, 2 * steps + 1):
        frames = [report(fleet, worker) for worker in range(WORKERS)] if number % 2 else []
        yield bool(frames), encode_step(StepInput(number * SPACING_MS, frames)) + b"\n"


def report(fleet: BenchFleet, worker: int) -> StepItem:
    """Build the next report of a worker."""
    head, payload, _ = fleet.frame(worker).split(b"\r\n")
    return StepItem(subject=head.split()[1].decode(), payload=Raw(payload))


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, steps = (2, 500) if options(__doc__) else (7, 2_000)
    loaded: list[float] = []
    baseline: list[float] = []
    names = ("p99", "bare_p99", "quiet", "quiet_p99", "start_s", "bare_start_s")
    figures: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "loadline.toml"
        config.write_text(BenchFleet(1, WORKERS).toml(), "utf-8")
        for number in range(1, rounds + 1):
            (_, first), *rest = lines(steps)
            agent = Child([sys.executable, "-m", "loadline", "step", "--config", str(config)], first)
            echo = Child([sys.executable, "-c", ECHO], first)
            times: dict[tuple[str, bool], list[float]] = {}
            for news, line in rest:
                for name, child in (("agent", agent), ("echo", echo)):
                    times.setdefault((name, news), []).append(child.ask_ms(line))
            agent.stop()
            echo.stop()
            loaded.append(percentile(times["agent", True], 0.5))
            baseline.append(percentile(times["echo", True], 0.5))
            figures["p99"].append(percentile(times["agent", True], 0.99))
            figures["bare_p99"].append(percentile(times["echo", True], 0.99))
            figures["quiet"].append(percentile(times["agent", False], 0.5))
            figures["quiet_p99"].append(percentile(times["agent", False], 0.99))
            figures["start_s"].append(agent.start_s)
            figures["bare_start_s"].append(echo.start_s)
            progress(
                f"round {number}/{rounds}: {loaded[-1]:.3f} ms, echo {baseline[-1]:.3f} ms, start {agent.start_s:.3f} s"
            )
    result(
        "step", "ms", loaded, baseline, **{name: round(percentile(found, 0.5), 3) for name, found in figures.items()}
    )


if __name__ == "__main__":
    main()
