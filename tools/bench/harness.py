"""Shared parts of benchmarks: a fleet that exists only in the registry and on the wire, probed processes, results."""

import argparse
import contextlib
import json
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from loadline.adapters.parent_death import ending_with_parent
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord, WorkerSample
from loadline.errors import LoadlineError
from loadline.rig.rig import Rig
from loadline.wire.codec import encode
from loadline.wire.messages import LoadReport, TrafficReport
from loadline.wire.subjects import Subjects
from tools.bench.probe import ProbeSample

POOL: Final = "decode"
ROOT: Final = "loadline"
BARE_ROOT: Final = "bareline"
"""Root of subjects for the bare subscriber, to which no agent subscribes."""
PATIENCE_S = 60.0
_MEMORY = Path("/dev/shm")  # noqa: S108 - a new folder in it
POLL_S = 0.05
_BURSTS_PER_S = 200
_RUNNING = 39.0
_ITL_MS = 23.75
_OSL_TOKENS = 200.0
# Part of the requests that the batches hold: with all of them, chance decides whether auto grows for the demand alone.
_ARRIVING = 0.94


class BenchFleet:
    """Decode workers that only report, with a KV usage just below the threshold, so that nothing is decided.

    Args:
        models: Number of models.
        workers: Number of workers over all models.
        usage_ratio: KV usage of all workers.
        planner: Planner of all models, with its default knobs.
    """

    def __init__(self, models: int, workers: int, usage_ratio: float = 0.7, planner: str = "threshold") -> None:
        per_model = workers // models
        self.records = [
            WorkerRecord(f"model-{m:04}", POOL, f"worker-{m:04}-{w:04}", POOL, incarnation=1, kv_blocks_total=20_000)
            for m in range(models)
            for w in range(per_model)
        ]
        self.models = [f"model-{m:04}" for m in range(models)]
        self.planner = planner
        self._intervals = 0
        self._used = int(usage_ratio * 20_000)
        self._sequences = dict.fromkeys(range(len(self.records)), 0)
        self._subjects = [Subjects(ROOT).load(r.model, r.pool, r.worker).encode() for r in self.records]
        self._per_model = per_model

    @property
    def sequences(self) -> int:
        """Sum of the newest published sequences of all workers."""
        return sum(self._sequences.values())

    def toml(self) -> str:
        """Return the models as TOML."""
        pool = f'name = "{POOL}"\nrole = "{POOL}"\nreplicas_max = {max(8, 2 * self._per_model)}'
        return "\n".join(
            f'[[models]]\nname = "{model}"\nplanner = "{self.planner}"\n[[models.pools]]\n{pool}'
            for model in self.models
        )

    def frame(self, worker: int, samples: int = 1, blocks_more: int = 0) -> bytes:
        """Build the next report of a worker as a PUB frame, with ten fields per sample."""
        record, first = self.records[worker], self._sequences[worker] + 1
        self._sequences[worker] += samples
        now_ms = time.time_ns() // 1_000_000
        report = LoadReport(
            record.model,
            record.pool,
            record.worker,
            record.incarnation,
            [
                WorkerSample(
                    sequence=first + i,
                    timestamp_ms=now_ms,
                    kv_blocks_used=self._used + blocks_more - (first + i) % 3,
                    kv_blocks_total=20_000,
                    waiting_requests=0,
                    running_requests=37 + (first + i) % 5,
                    queued_prefill_tokens=0,
                    active_prefill_tokens=2_048,
                    decode_tokens=151_552 + 512 * ((first + i) % 7),
                    itl_ms=_ITL_MS,
                )
                for i in range(samples)
            ],
        )
        payload = encode(report)
        return b"PUB %b %d\r\n%b\r\n" % (self._subjects[worker], len(payload), payload)

    def traffic_burst(self) -> bytes:
        """Build the report of a second of a frontend for each model, which fits the reported batches."""
        self._intervals += 1
        requests = round(_ARRIVING * self._per_model * _RUNNING * 1_000.0 / (_ITL_MS * _OSL_TOKENS))
        sample = TrafficSample(
            self._intervals, 1_000, requests, requests, isl_tokens=1_000.0, osl_tokens=_OSL_TOKENS, ttft_ms=100.0,
            itl_ms=_ITL_MS,
        )  # fmt: skip
        payloads = ((model, encode(TrafficReport(model, "frontend", 1, sample))) for model in self.models)
        subjects = Subjects(ROOT)
        return b"".join(
            b"PUB %b %d\r\n%b\r\n" % (subjects.traffic(model, "frontend").encode(), len(payload), payload)
            for model, payload in payloads
        )

    def burst(self, frames: int, samples: int = 1) -> bytes:
        """Build frames of all workers in turn."""
        return b"".join(self.frame(i % len(self.records), samples) for i in range(frames))

    def report_bursts(self, seconds: float) -> Iterator[tuple[float, bytes]]:
        """Yield the time since the start and the frames due, every 5 ms; each worker reports once a second."""
        sent, count = 0, len(self.records)
        for number in range(int(seconds * _BURSTS_PER_S)):
            due = (number + 1) * count // _BURSTS_PER_S
            yield number / _BURSTS_PER_S, b"".join(self.frame(i % count) for i in range(sent, due))
            sent = due


class RawPublisher:
    """NATS connection that only publishes prepared frames: one system call per burst."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(b'CONNECT {"verbose":false,"pedantic":false}\r\n')

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, frames: bytes) -> None:
        """Send the frames."""
        self._socket.sendall(frames)

    def play(self, bursts: Iterator[tuple[float, bytes]]) -> None:
        """Send frames at the times when they are due."""
        began_s = time.monotonic()
        for at_s, frames in bursts:
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            self.send(frames)


class ProbedProcess:
    """Child process that reports its progress; see ``tools.bench.probe``.

    Args:
        arguments: Kind of process, and its arguments.
        log: File for its stderr.
        cpu: Core to pin it to; any by default.
    """

    def __init__(self, arguments: Sequence[str], log: Path, cpu: int | None = None) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                ending_with_parent([sys.executable, "-m", "tools.bench.probe", *arguments]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        if cpu is not None:
            os.sched_setaffinity(self._process.pid, {cpu})
        self._log = log
        self.turns: list[tuple[float, float]] = []
        """Turns of all samples so far; clear it to start over."""
        self.turns_cpu_s: list[float] = []
        """Processor time of the same turns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def sample(self) -> ProbeSample:
        """Ask for a progress sample.

        Raises:
            LoadlineError: The process ended.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None  # noqa: S101, PT018 - both are pipes
        with contextlib.suppress(BrokenPipeError):
            requests.write(b"sample\n")
            requests.flush()
        line = answers.readline()
        if not line:
            raise LoadlineError(f"the probed process ended: {self._log.read_text()[-2000:]}")
        sample = msgspec.json.decode(line, type=ProbeSample)
        self.turns += sample.turns
        self.turns_cpu_s += sample.turns_cpu_s
        return sample

    def wait(self, enough: Callable[[ProbeSample], bool]) -> ProbeSample:
        """Sample until ``enough`` returns true; return the last sample.

        Raises:
            LoadlineError: That took more than 60 s.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not enough(sample := self.sample()):
            if time.monotonic() > deadline_s:
                raise LoadlineError(f"not enough after {PATIENCE_S:g} s: {msgspec.structs.replace(sample, turns=[])}")
            time.sleep(POLL_S)
        return sample

    def core_wait_s(self) -> float:
        """Return the time that its main thread has been ready to run without a core."""
        text = Path(f"/proc/{self._process.pid}/schedstat").read_text(encoding="ascii")
        return int(text.split()[1]) / 1e9

    def memory_mb(self) -> tuple[float, float]:
        """Return the present and the peak resident memory in MB (10^6 bytes)."""
        text = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        kib = {name: int(value) for name, value in re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", text)}
        return kib["VmRSS"] * 1024 / 1e6, kib["VmHWM"] * 1024 / 1e6


@contextlib.contextmanager
def rig(*, fsync: bool = False, in_memory: bool = False, members: int = 1) -> Iterator[Rig]:
    """Start servers in a temporary folder.

    Args:
        fsync: Whether etcd waits for the disk, as in production.
        members: Number of nats-servers and of etcds, each a cluster if there are several.
        in_memory: Whether the folder is in ``_MEMORY``, if the system has that.
    """
    parent = _MEMORY if in_memory and _MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="loadline-bench-", dir=parent) as folder,
        Rig(Path(folder), fsync=fsync, members=members) as servers,
    ):
        yield servers


def agent(
    servers: Rig, fleet: BenchFleet, name: str = "agent", cpu: int | None = None, *, delays: bool = False
) -> ProbedProcess:
    """Start a probed agent with a journal, for a fleet in the namespace ``name``; it records ``delays`` if asked.

    It connects to the last member of NATS, so that reports to the first one cross a route.
    """
    path = servers.directory / f"{name}.toml"
    nats = servers.nats_cluster.urls[-1]
    sections: dict[str, dict[str, object]] = {
        "http": {"port": 0}, "agent": {"namespace": name}, "nats": {"servers": [nats]},
    }  # fmt: skip
    path.write_text(servers.config(fleet.toml(), name, **sections), encoding="utf-8")
    arguments = ["agent", str(path), *(["delays"] if delays else [])]
    return ProbedProcess(arguments, servers.directory / f"{name}.log", cpu)


def subscriber(servers: Rig, cpu: int | None = None, *, delays: bool = False) -> ProbedProcess:
    """Start a probed subscriber that only decodes; it records ``delays`` if asked."""
    arguments = ["subscriber", servers.nats.url, Subjects(BARE_ROOT).all_of("load"), *(["delays"] if delays else [])]
    return ProbedProcess(arguments, servers.directory / "subscriber.log", cpu)


def warm(fleet: BenchFleet, wire: RawPublisher, child: ProbedProcess) -> None:
    """Wait for the agent to lead, and report every worker once, since first reports cost more."""
    child.wait(lambda sample: sample.ready)
    wire.send(fleet.burst(len(fleet.records)))
    child.wait(lambda sample: sample.workers == len(fleet.records))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile ``share`` (0..1) by nearest rank, which is always a measured value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def format_times(times_ms: Sequence[float]) -> str:
    """Format p50 and p99."""
    return f"p50 {percentile(times_ms, 0.5):.2f} ms, p99 {percentile(times_ms, 0.99):.2f} ms"


def command_line(text: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line that benchmarks have in common."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    return parser


def options(text: str | None) -> bool:
    """Parse the common command line of benchmarks; return whether ``--quick`` is set."""
    quick: bool = command_line(text).parse_args().quick
    return quick


def progress(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def result(name: str, unit: str, values: Sequence[float], baselines: Sequence[float], **more: Any) -> None:
    """Print the result of a benchmark as one JSON line: medians over its rounds.

    The ratio is the median of the ratios by round, so that load on the machine in some rounds does not matter.
    """
    value, baseline = statistics.median(values), statistics.median(baselines)
    ratio = statistics.median(one / other for one, other in zip(values, baselines, strict=True))
    line = {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "baseline": round(baseline, 3),
        "ratio": round(ratio, 3),
        "spread": [round(min(values), 3), round(max(values), 3)],
        **more,
    }
    print(json.dumps(line), flush=True)
