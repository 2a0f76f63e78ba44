"""NVIDIA's replay simulator as a process, in NVIDIA's environment: a job on stdin, a result on stdout, as JSON lines.

Between them, if the job has no scaling policy of NVIDIA's, come a snapshot of the fleet a second and the counts to set
as an answer to each.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

PERIOD_MS = 1_000.0
_TRACE_BLOCK_TOKENS = 512
_PREFIX = {"aggregated": "extra", "prefill": "prefill", "decode": "decode"}
_COUNT = {"aggregated": "num_workers", "prefill": "num_prefill_workers", "decode": "num_decode_workers"}

Ask = Callable[[dict[str, Any]], dict[str, Any]]


class RemoteScaler:
    """Scaling policy that sends each snapshot to the parent process and sets the counts that it answers."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def start(self) -> None:
        """Do nothing; the simulator calls this first."""

    def initial_tick_ms(self) -> float:
        """Return the time of the first snapshot."""
        return PERIOD_MS

    def on_tick(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return the counts, where None keeps a count, and the time of the next snapshot."""
        counts = self._ask({"snapshot": snapshot})
        targets = {f"target_{role}": counts.get(role) for role in ("prefill", "decode")}
        return {**targets, "next_tick_ms": snapshot["now_ms"] + PERIOD_MS}


def replay(job: dict[str, Any], ask: Ask) -> dict[str, Any]:
    """Simulate the trace of a job; return the number of requests within the objectives, and the GPU-hours."""
    from dynamo._core import run_mocker_trace_replay  # noqa: PLC0415 - after the stand-in

    engines = {
        role: {"engine": {**job["engine"], "worker_type": role}, "startup_time": job["start_up_s"]}
        for role in job["workers"]
    }
    counts = job["workers"]
    arguments = {f"{_PREFIX[role]}_engine_args": engine for role, engine in engines.items()}
    arguments |= {_COUNT[role]: count for role, count in counts.items()}
    with _policy(job, engines, ask) as policy:
        report = run_mocker_trace_replay(
            [job["trace"]],
            **arguments,
            trace_block_size=_TRACE_BLOCK_TOKENS,
            sla_ttft_ms=job["ttft_ms"],
            sla_itl_ms=job["itl_ms"],
            scaling_policy=policy,
        )
    return {"met": report.summary["goodput_completed_requests"], "gpu_hours": report.summary["gpu_hours"]}


def _policy(job: dict[str, Any], engines: dict[str, Any], ask: Ask) -> AbstractContextManager[Any]:
    """Return the policy of a job: none, Dynamo's planner, or that of the parent process."""
    if job["policy"] == "fixed":
        return nullcontext()
    if job["policy"] == "remote":
        return nullcontext(RemoteScaler(ask))
    from dynamo.replay.planner import planner_replay_adapter  # noqa: PLC0415 - after the stand-in

    aggregated, prefill, decode = (engines.get(role) for role in ("aggregated", "prefill", "decode"))
    policy: AbstractContextManager[Any] = planner_replay_adapter(
        aggregated, prefill, decode, json.dumps(job["planner"]), capture_details=False
    )
    return policy


def serve(lines: TextIO, answers: TextIO) -> None:
    """Do the jobs of the parent process until it closes the pipe."""

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        say(question)
        return json.loads(lines.readline())  # type: ignore[no-any-return]

    while line := lines.readline():
        try:
            say({"result": replay(json.loads(line), ask)})
        except Exception as error:  # noqa: BLE001 - reported to the parent
            say({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Keep stdout for answers, since NVIDIA's libraries print there too."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from tools.bench.peers import perf_model  # noqa: PLC0415 - its import prints

    perf_model.install()
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
