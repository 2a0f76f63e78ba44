"""Forward-pass metrics of NVIDIA Dynamo: one record per iteration of an engine, and its load over an interval. Pure.

A record arrives as it left the engine (``topic, sequence, record``), or in an envelope of Dynamo's event plane. An idle
engine sends a record of zeros each second.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import (
    BATCH_MAX,
    QUEUE_MAX,
    TOKEN_COUNT_MAX,
    BatchCount,
    Count,
    QueueCount,
    TokenCount,
)
from loadline.sources.empty_readings import EmptyReadings
from loadline.wire.codec import printable

TOPIC: Final = "forward-pass-metrics"
VERSION: Final = 1
RECORD_BYTES_MAX: Final = 16_384
"""Largest record or envelope; they have 0.4 to 0.6 kB."""
_FRAMES_RAW: Final = 3
_FRAMES_ENVELOPE: Final = 4
# Version and length of the envelope, before it.
_HEADER_BYTES: Final = 5
_SECONDS_MAX: Final = 86_400.0
# Brokers are seconds apart at most, and an iteration takes 5 ms or more.
_DUPLICATES_MAX: Final = 1_000
_DETAIL_CHARS_MAX: Final = 120


class RecordRefused(Exception):
    """A message that is no record, with a reason from a short list."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = printable(detail, _DETAIL_CHARS_MAX)


class ScheduledRequests(Struct, frozen=True):
    """Requests of the iteration."""

    num_prefill_requests: BatchCount = 0
    sum_prefill_tokens: TokenCount = 0
    sum_prefill_kv_tokens: TokenCount = 0
    num_decode_requests: BatchCount = 0
    sum_decode_kv_tokens: TokenCount = 0


class WaitingRequests(Struct, frozen=True):
    """Requests that wait; those that decode were preempted."""

    num_prefill_requests: QueueCount = 0
    sum_prefill_tokens: TokenCount = 0
    num_decode_requests: QueueCount = 0
    sum_decode_kv_tokens: TokenCount = 0


class ForwardPassMetrics(Struct, frozen=True):
    """One iteration of one rank."""

    version: int
    worker_id: Annotated[str, Meta(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*\Z")] = ""
    """A ``Name``, or empty; see ``_read_record``."""
    dp_rank: Annotated[int, Meta(ge=0, lt=1024)] = 0
    counter_id: Count = 0
    wall_time: Annotated[float, Meta(ge=0.0, le=_SECONDS_MAX)] = 0.0
    scheduled_requests: ScheduledRequests = ScheduledRequests()
    queued_requests: WaitingRequests = WaitingRequests()


class _Envelope(Struct, frozen=True):
    topic: str
    payload: bytes


_records: Final = msgspec.msgpack.Decoder(ForwardPassMetrics)
_envelopes: Final = msgspec.msgpack.Decoder(_Envelope)


def read_frames(frames: Sequence[bytes]) -> tuple[ForwardPassMetrics | None, str]:
    """Return the record of a ZeroMQ message and its topic; no record: the message has another topic.

    Raises:
        RecordRefused: It is not as Dynamo sends it.
    """
    if len(frames) == _FRAMES_RAW:
        return _read_record(frames[2]), ""
    if len(frames) != _FRAMES_ENVELOPE:
        raise RecordRefused("frames", f"{len(frames)} frames")
    framed = frames[3]
    if len(framed) < _HEADER_BYTES or int.from_bytes(framed[1:_HEADER_BYTES], "big") != len(framed) - _HEADER_BYTES:
        raise RecordRefused("frame_header", framed[:_HEADER_BYTES].hex())
    return read_envelope(framed[_HEADER_BYTES:]), frames[0].decode("utf-8", "replace")


def read_envelope(data: bytes) -> ForwardPassMetrics | None:
    """Return the record in an envelope of the event plane; None: the envelope has another topic.

    Raises:
        RecordRefused: It is not as Dynamo sends it.
    """
    _check_size(data)
    try:
        envelope = _envelopes.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordRefused("envelope", str(error)) from error
    return _read_record(envelope.payload) if envelope.topic == TOPIC else None


def _read_record(data: bytes) -> ForwardPassMetrics:
    _check_size(data)
    try:
        record = _records.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordRefused("record", str(error)) from error
    if record.version != VERSION:
        raise RecordRefused("version", f"version {record.version}; this source reads version {VERSION}")
    if not record.worker_id:
        raise RecordRefused("no_worker_id", "a worker restored from a snapshot sends none until it is restarted")
    return record


def _check_size(data: bytes) -> None:
    if len(data) > RECORD_BYTES_MAX:
        raise RecordRefused("oversized", f"{len(data)} bytes")


class _RankLoad:
    """Iterations of one rank since the last report."""

    __slots__ = ("counter", "decoded", "decoding_s", "iterations", "latest", "seconds")

    def __init__(self) -> None:
        self.latest: ForwardPassMetrics | None = None
        self.counter = -1
        self.reset()

    def reset(self) -> None:
        self.iterations = self.decoded = 0
        self.seconds = self.decoding_s = 0.0


class DynamoEngine:
    """Load of one worker of Dynamo, from the records of its ranks.

    Args:
        record: Description of the worker, whose block size turns tokens into blocks.
    """

    def __init__(self, record: WorkerRecord) -> None:
        self._block_size = record.block_size_tokens
        self._blocks_total = record.kv_blocks_total
        self._ranks: dict[int, _RankLoad] = {}
        self._new: set[int] = set()
        self._empty = EmptyReadings()

    def put(self, record: ForwardPassMetrics) -> None:
        """Add an iteration, unless it is not newer: in a cluster of brokers each record arrives from every one.

        A counter that falls by more than such a delay belongs to a restarted engine.
        """
        rank = self._ranks.setdefault(record.dp_rank, _RankLoad())
        if record.counter_id and 0 <= rank.counter - record.counter_id < _DUPLICATES_MAX:
            return
        rank.counter, rank.latest = record.counter_id, record
        self._empty.note(record.dp_rank, is_empty=not _requests(record))
        self._new.add(record.dp_rank)
        if record.wall_time > 0:
            decoding = record.scheduled_requests.num_decode_requests
            rank.iterations += 1
            rank.seconds += record.wall_time
            rank.decoded += decoding
            rank.decoding_s += decoding * record.wall_time

    def take_samples(self) -> list[WorkerSample]:
        """Return a sample of each rank that sent a record since the last call."""
        new, self._new = sorted(self._new), set()
        return [self._sample(number, self._ranks[number]) for number in new]

    def begin_drain(self) -> None:
        """Forget what the ranks have said of their requests so far."""
        self._empty.begin()

    def is_empty(self) -> bool:
        """Return True if each rank has said twice in a row that it has no request."""
        return self._empty.are_enough

    def _sample(self, number: int, rank: _RankLoad) -> WorkerSample:
        latest = rank.latest or ForwardPassMetrics(VERSION)
        running, waiting = latest.scheduled_requests, latest.queued_requests
        sample = WorkerSample(
            0,
            0,
            rank=number,
            kv_blocks_used=self._blocks_used(running),
            kv_blocks_total=self._blocks_total,
            # Agents refuse a report with a number above these bounds, whatever else it has.
            waiting_requests=min(waiting.num_prefill_requests + waiting.num_decode_requests, QUEUE_MAX),
            running_requests=min(running.num_prefill_requests + running.num_decode_requests, BATCH_MAX),
            # Engines compute the KV cache of preempted requests again.
            queued_prefill_tokens=min(waiting.sum_prefill_tokens + waiting.sum_decode_kv_tokens, TOKEN_COUNT_MAX),
            active_prefill_tokens=running.sum_prefill_tokens,
            decode_tokens=running.sum_decode_kv_tokens,
            decode_batch_requests=running.num_decode_requests,
            # A decoding request gets one token per iteration, so long iterations count for each of their requests.
            itl_ms=1_000 * rank.decoding_s / rank.decoded if rank.decoded else None,
            iteration_ms=1_000 * rank.seconds / rank.iterations if rank.iterations else None,
        )
        rank.reset()
        return sample

    def _blocks_used(self, running: ScheduledRequests) -> int | None:
        """Return the KV blocks of the running requests; prefixes that they share count for each, up to all blocks."""
        if not self._block_size or self._blocks_total is None:
            return None
        tokens = running.sum_prefill_tokens + running.sum_prefill_kv_tokens + running.sum_decode_kv_tokens
        return min(-(-tokens // self._block_size), self._blocks_total)


def _requests(record: ForwardPassMetrics) -> int:
    running, waiting = record.scheduled_requests, record.queued_requests
    scheduled = running.num_prefill_requests + running.num_decode_requests
    return scheduled + waiting.num_prefill_requests + waiting.num_decode_requests
