"""Codec between bytes and events. Decoding is total: any input gives an event or a ``Rejected``.

A frame is JSON or MessagePack, distinguished by its first byte: all JSON begins below 0x80, a MessagePack map never
does.
Unknown fields are ignored; of duplicate keys the last one wins.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.events import (
    DecisionAnswered,
    LoadReported,
    MigrationReported,
    TrafficReported,
    WorkerDrained,
)
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import Histogram, WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import LENGTH_MIN, Name
from loadline.wire.keys import VALUE_BYTES_MAX, WORKER_RECORD_BYTES_MAX
from loadline.wire.messages import DecisionApplied, DrainReport, LoadReport, MigrationReport, TrafficReport
from loadline.wire.subjects import Subjects, decode_token, encode_token

DETAIL_CHARS_MAX: Final = 160
SUBJECT_CHARS_MAX: Final = 256
DECISION_BYTES_MAX: Final = 262_000
"""Largest decision: with its ``ttl_ms`` it stays below 262,144 bytes, the default ``frame_bytes_max`` of scalers."""
# A name has at most 100 characters of at most 4 bytes, each written as %XX.
_NAME_CHARS_MAX: Final = 100
_TOKEN_CHARS_MAX: Final = _NAME_CHARS_MAX * 4 * 3
# 65,536 routes of about 600 bytes: a flood of invented subjects costs 40 MB at most, then the cache is cleared.
_ROUTES_MAX: Final = 65_536
_MSGPACK_FIRST_BYTE: Final = 0x80
# Unix times in ms have 13 digits; all numbers of 15 fit into a message.
_EPOCH_DIGITS_MAX: Final = 15

WireEvent = LoadReported | TrafficReported | DecisionAnswered | WorkerDrained | MigrationReported
T = TypeVar("T")
S = TypeVar("S", bound=Struct)


class Rejected(Struct, frozen=True):
    """A refused input and its reason. ``subject`` and ``detail`` are bounded and printable."""

    reason: Rejection
    subject: str
    detail: str


def printable(text: str, chars_max: int) -> str:
    """Return at most the first ``chars_max`` characters, with non-printable ones escaped."""
    clean = text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:chars_max])
    return clean if len(clean) <= chars_max else clean[: chars_max - 1] + "…"


def reject(reason: Rejection, subject: str, detail: str) -> Rejected:
    """Return a ``Rejected`` whose texts are safe to log."""
    return Rejected(reason, printable(subject, SUBJECT_CHARS_MAX), printable(detail, DETAIL_CHARS_MAX))


# What a decoder raises. Not under msgspec's own error type: invalid UTF-8, and nesting beyond the interpreter's stack.
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _refuse(error: Exception, subject: str) -> Rejected:
    """Return the refusal that follows from one of ``_DECODE_ERRORS``."""
    match error:
        case msgspec.ValidationError():
            return reject(Rejection.INVALID, subject, str(error))
        case RecursionError():
            return reject(Rejection.TOO_DEEP, subject, "nested too deep")
    return reject(Rejection.MALFORMED, subject, str(error))


class _Decoder(Generic[T]):
    """A decoder of one type from either encoding."""

    def __init__(self, kind: type[T]) -> None:
        self.json = msgspec.json.Decoder(kind).decode
        self.msgpack = msgspec.msgpack.Decoder(kind).decode

    def decode(self, data: bytes, subject: str) -> T | Rejected:
        try:
            return self.msgpack(data) if data and data[0] >= _MSGPACK_FIRST_BYTE else self.json(data)
        except _DECODE_ERRORS as error:
            return _refuse(error, subject)


@cache
def _decoder(kind: type[S]) -> _Decoder[S]:
    return _Decoder(kind)


class _LoadFrame(LoadReport, frozen=True):
    """A load report without checks of its names, which must equal the subject's: 0.5 us instead of 1.7 us."""

    model: str
    pool: str
    worker: str


_load_reports: Final = _Decoder(_LoadFrame)
_load_from_json: Final = _load_reports.json
_load_from_msgpack: Final = _load_reports.msgpack
_traffic_reports: Final = _Decoder(TrafficReport)
_answers: Final = _Decoder(DecisionApplied)
_drain_reports: Final = _Decoder(DrainReport)
_migration_reports: Final = _Decoder(MigrationReport)

Names = tuple[str, ...]
_Reader = Callable[[bytes, str, Names], WireEvent | Rejected]


def _mismatch(subject: str, of_subject: Names, of_payload: Names) -> Rejected:
    # The subject is in the log too. The names of a payload may be long: load reports are not checked for that.
    named = ", ".join(
        repr(name[:_NAME_CHARS_MAX]) for token, name in zip(of_subject, of_payload, strict=True) if name != token
    )
    return reject(Rejection.SUBJECT_MISMATCH, subject, f"the payload names {named} instead")


def _read_load(data: bytes, subject: str, names: Names) -> WireEvent | Rejected:
    try:  # most frames: a call of _Decoder.decode would take 0.1 us more
        report = _load_from_msgpack(data) if data and data[0] >= _MSGPACK_FIRST_BYTE else _load_from_json(data)
    except _DECODE_ERRORS as error:
        return _refuse(error, subject)
    model, pool, worker = names
    if report.worker != worker or report.pool != pool or report.model != model:
        return _mismatch(subject, names, (report.model, report.pool, report.worker))
    samples = report.samples
    for sample in samples:
        total = sample.kv_blocks_total
        if total is not None and (sample.kv_blocks_used or 0) > total:
            return reject(
                Rejection.KV_INCONSISTENT, subject, f"{sample.kv_blocks_used} of {total} KV blocks are in use"
            )
    return LoadReported(model, pool, worker, report.incarnation, samples if len(samples) == 1 else _newest(samples))


def _newest(samples: Sequence[WorkerSample]) -> list[WorkerSample]:
    """Return the newest sample of each rank: the others of the same frame would be overwritten unread.

    Of 50 samples, the journal and the core then take one, which halves their cost.
    """
    newest: dict[int, WorkerSample] = {}
    for sample in samples:
        known = newest.get(sample.rank)
        if known is None or sample.sequence > known.sequence:
            newest[sample.rank] = sample
    return list(newest.values())


def _read_traffic(data: bytes, subject: str, names: Names) -> WireEvent | Rejected:
    report = _traffic_reports.decode(data, subject)
    if isinstance(report, Rejected):
        return report
    model, frontend = names
    if report.model != model or report.frontend != frontend:
        return _mismatch(subject, names, (report.model, report.frontend))
    sample = report.sample
    if max(sample.ttft_met or 0, sample.itl_met or 0, sample.both_met or 0) > sample.completed:
        return reject(Rejection.INVALID, subject, "more requests met an objective than were completed")
    if any(
        mean and mean < LENGTH_MIN for mean in (sample.isl_tokens, sample.osl_tokens, sample.ttft_ms, sample.itl_ms)
    ):
        return reject(Rejection.INVALID, subject, f"a mean is below {LENGTH_MIN:g}")
    for histogram in (sample.isl_histogram, sample.osl_histogram):
        if histogram is not None and (problem := _histogram_problem(histogram)):
            return reject(Rejection.INVALID, subject, problem)
    return TrafficReported(model, frontend, report.incarnation, sample)


def _histogram_problem(histogram: Histogram) -> str:
    bounds, counts = histogram.bounds, histogram.counts
    if len(counts) != len(bounds) + 1:
        return f"a histogram of {len(bounds)} bounds has {len(counts)} counts, not one more than bounds"
    if any(low >= high for low, high in pairwise(bounds)):
        return "the bounds of a histogram must rise"
    if any(0.0 < bound < LENGTH_MIN for bound in bounds[:2]):
        return f"a bound of a histogram is below {LENGTH_MIN:g} tokens"
    return ""


def _read_answer(data: bytes, subject: str, names: Names) -> WireEvent | Rejected:
    answer = _answers.decode(data, subject)
    if isinstance(answer, Rejected):
        return answer
    (model,) = names
    if answer.model != model:
        return _mismatch(subject, names, (answer.model,))
    return DecisionAnswered(
        decision_id=answer.decision_id,
        model=model,
        epoch=answer.epoch,
        sequence=answer.sequence,
        scaler=answer.scaler,
        status=answer.status,
        observed=answer.observed,
        detail=answer.detail,
        victims=answer.victims,
        in_force=answer.in_force,
    )


def _read_drained(data: bytes, subject: str, names: Names) -> WireEvent | Rejected:
    report = _drain_reports.decode(data, subject)
    if isinstance(report, Rejected):
        return report
    reported = (report.model, report.pool, report.worker)[-len(names) :]  # the former subject has the worker only
    if reported != names:
        return _mismatch(subject, names, reported)
    return WorkerDrained(report.model, report.pool, report.worker, report.incarnation)


def _read_migration(data: bytes, subject: str, names: Names) -> WireEvent | Rejected:
    report = _migration_reports.decode(data, subject)
    if isinstance(report, Rejected):
        return report
    reported = (report.model, report.source.pool, report.source.worker)[-len(names) :]
    if reported != names:
        return _mismatch(subject, names, reported)
    if report.moved + report.failed > report.requests:
        return reject(Rejection.INVALID, subject, "more requests were moved or failed than were chosen")
    return MigrationReported(
        command_id=report.command_id,
        model=report.model,
        epoch=report.epoch,
        source=report.source,
        destination=report.destination,
        trigger=report.trigger,
        phase=report.phase,
        requests=report.requests,
        moved=report.moved,
        failed=report.failed,
        tokens=report.tokens,
        took_ms=report.took_ms,
        reason=report.reason,
        detail=report.detail,
    )


_KINDS: Final[dict[tuple[str, int], _Reader]] = {
    ("load", 3): _read_load,
    ("traffic", 2): _read_traffic,
    ("applied", 1): _read_answer,
    ("drained", 3): _read_drained,
    ("migration", 3): _read_migration,
    ("drained", 1): _read_drained,
    ("migration", 1): _read_migration,
}
"""Kind of subject and number of names after it -> reader of its frames. The last two are the forms of version 0.1."""


class Codec:
    """A decoder of frames published to agents.

    Args:
        subjects: The subjects of this agent's root.
        frame_bytes_max: Larger frames are refused without parsing.
    """

    def __init__(self, subjects: Subjects, frame_bytes_max: int) -> None:
        self._prefix = f"{subjects.prefix}."
        self._frame_bytes_max = frame_bytes_max
        self._routes: dict[str, tuple[_Reader, Names]] = {}
        self._shared_names: dict[str, str] = {}

    def decode(self, subject: str, data: bytes) -> WireEvent | Rejected:
        """Return the event that a frame reports, or the reason of its refusal. Never raises."""
        if len(data) > self._frame_bytes_max:
            return reject(Rejection.OVERSIZED, subject, f"{len(data)} bytes, {self._frame_bytes_max} are allowed")
        route = self._routes.get(subject)
        if route is None:
            found = self._route(subject)
            if isinstance(found, Rejected):
                return found
            route = found
        read, names = route
        return read(data, subject, names)

    def _route(self, subject: str) -> tuple[_Reader, Names] | Rejected:
        """Return the reader of the subject's frames and the names in it; cached: subjects are few, frames many."""
        kind, *tokens = subject.removeprefix(self._prefix).split(".", 4)
        read = _KINDS.get((kind, len(tokens)))
        if read is None or not subject.startswith(self._prefix):
            return reject(Rejection.SUBJECT_UNKNOWN, subject, "no message type uses this subject")
        if any(len(token) > _TOKEN_CHARS_MAX for token in tokens):
            return reject(Rejection.SUBJECT_UNKNOWN, subject, "a name in the subject is too long")
        try:
            names = tuple(map(decode_token, tokens))
            for name in names:
                msgspec.convert(name, Name)
        except (ValueError, msgspec.ValidationError) as error:
            return reject(Rejection.SUBJECT_UNKNOWN, subject, str(error))
        if tuple(map(encode_token, names)) != tuple(tokens):
            return reject(
                Rejection.SUBJECT_UNKNOWN, subject, "a name in the subject is not in canonical percent-encoding"
            )
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
            self._shared_names.clear()
        # 10,000 workers share a few models and pools. Not sys.intern, which keeps a name for ever in Python 3.12.
        names = tuple(self._shared_names.setdefault(name, name) for name in names)
        self._routes[subject] = (read, names)
        return read, names


def encode(message: Struct) -> bytes:
    """Encode a message as JSON."""
    return msgspec.json.encode(message)


def decode_as(kind: type[S], data: bytes, subject: str = "") -> S | Rejected:
    """Decode a message of a known type from JSON or MessagePack. Never raises; ``subject`` is for the refusal only."""
    if len(data) > VALUE_BYTES_MAX:
        return reject(Rejection.OVERSIZED, subject, f"{len(data)} bytes, {VALUE_BYTES_MAX} are allowed")
    return _decoder(kind).decode(data, subject)


def decode_worker_record(key_parts: Sequence[str], value: bytes, bytes_left_out: int = 0) -> WorkerRecord | Rejected:
    """Decode a worker's record from the store, or return the reason of its refusal. Never raises.

    Args:
        key_parts: ``("workers", model, pool, worker)``, as ``Keys.split`` gives it.
        value: The key's value.
        bytes_left_out: Size of a value that the store left out.
    """
    key = "/".join(key_parts)
    size = bytes_left_out or len(value)
    if size > WORKER_RECORD_BYTES_MAX:
        return reject(Rejection.OVERSIZED, key, f"{size} bytes, {WORKER_RECORD_BYTES_MAX} are allowed")
    record = decode_as(WorkerRecord, value, key)
    if isinstance(record, Rejected):
        return record
    if tuple(key_parts) != ("workers", record.model, record.pool, record.worker):
        return reject(Rejection.SUBJECT_MISMATCH, key, "key and record name different workers")
    return record


def decode_learned(model: str, value: bytes) -> LearnedState | Rejected:
    """Decode a model's learned state from the store, or return the reason of its refusal. Never raises."""
    return decode_as(LearnedState, value, f"state/{model}")


def encode_decision(decision: Decision) -> bytes | Rejected:
    """Encode a decision for the store, or return the reason why agents and scalers could not decode it."""
    value = encode(decision)
    if len(value) > DECISION_BYTES_MAX:
        return reject(Rejection.OVERSIZED, "decision", f"{len(value)} bytes, {DECISION_BYTES_MAX} are allowed")
    decoded = decode_decision(value)
    if isinstance(decoded, Rejected):
        return reject(decoded.reason, "decision", f"{len(value)} bytes cannot be decoded: {decoded.detail}")
    return value


def decode_decision(value: bytes) -> Decision | Rejected:
    """Decode a decision from the store."""
    return decode_as(Decision, value, "decision")


def decode_leader(value: bytes) -> str:
    """Decode the agent's name in a leader's key in the store, 1 to 100 characters: an empty one means no leader."""
    return value.decode(errors="replace")[:_NAME_CHARS_MAX] or "(unnamed)"


def decode_epoch(value: bytes) -> int:
    """Decode the epoch in its key in the store; 0 if it is none."""
    return int(value) if value.isdigit() and len(value) <= _EPOCH_DIGITS_MAX else 0
