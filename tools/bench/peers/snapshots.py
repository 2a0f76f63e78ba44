"""Snapshots of NVIDIA's simulator as messages to the agent."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any, Final

from msgspec import Raw, Struct

from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role, WorkerPhase
from loadline.wire.codec import encode
from loadline.wire.messages import DrainReport, LoadReport, TrafficReport
from loadline.wire.steps import StepItem
from loadline.wire.subjects import Subjects

MODEL: Final = "m"
SUBJECTS: Final = Subjects("loadline")
KV_BLOCKS: Final = 16_384
BLOCK_TOKENS: Final = 64
_FRONTEND: Final = "replay"

Snapshot = dict[str, Any]


def key_of(role: Role) -> str:
    """Return the simulator's name of a role; it counts aggregated workers as decode workers."""
    return "decode" if role == "aggregated" else role


def item(subject: str, message: Struct) -> StepItem:
    """Return an item of a step with a message."""
    return StepItem(subject=subject, payload=Raw(encode(message)))


class Worker(Struct):
    """A worker as the agent knows it."""

    name: str
    incarnation: int
    phase: WorkerPhase | None = None
    """Phase of the last record."""
    sequence: int = 0
    drains: bool = False
    """True if the agent has commanded it to drain."""


class Pool:
    """Workers of one role; the pool has the name of the role.

    The simulator drains workers of its own choice. If another one has been commanded to drain, the two exchange their
    names, so that the agent sees its command followed. All workers of a pool are alike.
    """

    def __init__(self, role: Role, kv_blocks: int = KV_BLOCKS) -> None:
        self.role, self._kv_blocks = role, kv_blocks
        self._key = key_of(role)
        self._workers: dict[int, Worker] = {}
        self._born = 0

    def drain(self, name: str) -> None:
        """Note that the agent has commanded a worker to drain."""
        for worker in self._workers.values():
            worker.drains = worker.drains or worker.name == name

    def items(self, snapshot: Snapshot) -> Iterator[StepItem]:
        """Yield records of workers that are new or have changed, removals, and the load of the others."""
        now_ms = int(snapshot["now_ms"])
        starting, active, draining = (
            set(snapshot[f"{phase}_{self._key}_ids"]) for phase in ("starting", "active", "draining")
        )
        existing = starting | active | draining
        self._exchange(leaving=draining | self._workers.keys() - existing, staying=(starting | active) - draining)
        for number in sorted(self._workers.keys() - existing):
            yield from self._gone(self._workers.pop(number))
        passes = {one["worker_id"]: one for one in snapshot[f"{self._key}_fpm_snapshots"]}
        for number in sorted(existing):
            worker = self._workers.setdefault(number, Worker(f"{self.role}-{self._born}", now_ms))
            self._born += worker.phase is None
            phase: WorkerPhase = "draining" if worker.drains else "starting" if number in starting else "ready"
            if phase != worker.phase:
                worker.phase = phase
                yield StepItem(record=Raw(encode(self._record(worker, phase))))
            if number not in starting:
                worker.sequence += 1
                yield self._load(worker, now_ms, passes.get(number), snapshot["traffic"])

    def _exchange(self, leaving: Collection[int], staying: Collection[int]) -> None:
        workers = self._workers
        unasked = [number for number in sorted(leaving) if number in workers and not workers[number].drains]
        asked = [number for number in sorted(staying) if number in workers and workers[number].drains]
        for one, other in zip(unasked, asked, strict=False):
            workers[one], workers[other] = workers[other], workers[one]

    def _gone(self, worker: Worker) -> Iterator[StepItem]:
        names = MODEL, self.role, worker.name
        if worker.drains:
            yield item(SUBJECTS.drained(*names), DrainReport(*names, worker.incarnation))
        yield StepItem(gone=worker.name)

    def _record(self, worker: Worker, phase: WorkerPhase) -> WorkerRecord:
        return WorkerRecord(
            MODEL,
            self.role,
            worker.name,
            self.role,
            worker.incarnation,
            phase,
            kv_blocks_total=self._kv_blocks,
            block_size_tokens=BLOCK_TOKENS,
        )

    def _load(self, worker: Worker, now_ms: int, last: Snapshot | None, traffic: Snapshot) -> StepItem:
        sample = self._sample(worker.sequence, now_ms, last, traffic)
        names = MODEL, self.role, worker.name
        return item(SUBJECTS.load(*names), LoadReport(*names, worker.incarnation, [sample]))

    def _sample(self, sequence: int, now_ms: int, last: Snapshot | None, traffic: Snapshot) -> WorkerSample:
        """Return the load of a worker from its last forward pass; without one since the last snapshot it is idle.

        TTFT and ISL are those of the fleet: the simulator does not have them by worker.
        """
        work = defaultdict(int, last or {})
        decoding, prefilling = work["num_decode_requests"], work["num_prefill_requests"]
        tokens = work["sum_decode_kv_tokens"] + work["sum_prefill_kv_tokens"] + work["sum_prefill_tokens"]
        iteration_ms = work["wall_time"] * 1_000 or None
        return WorkerSample(
            sequence,
            now_ms,
            kv_blocks_used=min(self._kv_blocks, -(-tokens // BLOCK_TOKENS)),
            kv_blocks_total=self._kv_blocks,
            waiting_requests=work["num_queued_prefill"] + work["num_queued_decode"],
            running_requests=decoding + prefilling,
            queued_prefill_tokens=work["sum_queued_prefill_tokens"],
            active_prefill_tokens=work["sum_prefill_tokens"],
            decode_tokens=work["sum_decode_kv_tokens"],
            decode_batch_requests=decoding,
            ttft_ms=_mean(traffic, "ttft") if self.role != "decode" else None,
            itl_ms=iteration_ms if decoding and self.role != "prefill" else None,
            isl_tokens=_mean(traffic, "shape", "isl"),
            iteration_ms=iteration_ms,
        )


class Frontend:
    """The simulator's router, whose traffic the agent gets."""

    def __init__(self) -> None:
        self._sequence = self._in_flight = 0

    def item(self, traffic: Snapshot) -> StepItem:
        """Return the report of the interval since the last snapshot."""
        self._sequence += 1
        arrivals, completed = round(traffic["num_req"]), round(traffic["shape_count"])
        self._in_flight = max(0, self._in_flight + arrivals - completed)
        sample = TrafficSample(
            self._sequence,
            max(1, round(traffic["duration_s"] * 1_000)),
            arrivals,
            completed,
            in_flight=self._in_flight,
            isl_tokens=_mean(traffic, "shape", "isl"),
            osl_tokens=_mean(traffic, "shape", "osl"),
            ttft_ms=_mean(traffic, "ttft"),
            itl_ms=_mean(traffic, "itl"),
        )
        return item(SUBJECTS.traffic(MODEL, _FRONTEND), TrafficReport(MODEL, _FRONTEND, 1, sample))


def _mean(traffic: Snapshot, counted: str, name: str = "") -> float | None:
    """Return a mean of the interval; None if nothing was counted."""
    if not traffic.get(f"{counted}_count"):
        return None
    name = name or counted
    return float(traffic[f"avg_{name}_ms" if name == counted else f"avg_{name}"])
