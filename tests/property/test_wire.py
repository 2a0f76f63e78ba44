"""Properties of the wire format: equal encodings, reversible tokens, compatible versions."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.events import Event, LoadReported
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker, TrafficSample, WorkerRecord, WorkerSample
from loadline.wire.codec import Codec, Rejected, decode_as, decode_decision, encode
from loadline.wire.messages import MESSAGES, DecisionApplied, DrainCommand, LoadReport, TrafficReport
from loadline.wire.subjects import Subjects, decode_token, encode_token
from tests.support.fleet_harness import fleet_of

SUBJECTS = Subjects("loadline")
CODEC = Codec(SUBJECTS, 262_144)

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f", min_codepoint=0x20), min_size=1)
short_names = names.filter(lambda name: len(name) <= 100)
counts = st.integers(0, 2**53)
batches, queues, arrivals = st.integers(0, 65_536), st.integers(0, 10_000_000), st.integers(0, 3_600_000_000)
latencies = st.none() | st.just(0.0) | st.floats(1e-3, 1e12)
samples = st.builds(
    WorkerSample,
    sequence=counts,
    timestamp_ms=counts,
    rank=st.integers(0, 1023),
    kv_blocks_used=st.none() | st.integers(0, 1000),
    kv_blocks_total=st.none() | st.integers(1000, 2000),
    kv_usage_ratio=st.none() | st.floats(0, 1),
    waiting_requests=st.none() | queues,
    running_requests=st.none() | batches,
    itl_ms=latencies,
    ttft_ms=latencies,
    schedulable=st.booleans(),
)
traffic_samples = st.builds(
    TrafficSample,
    sequence=counts,
    interval_ms=st.integers(1, 3_600_000),
    arrivals=arrivals,
    isl_tokens=st.none() | st.just(0.0) | st.floats(1e-3, 1e7),
)


@given(names)
def test_a_name_is_encoded_as_one_token_and_decoded_unchanged(name: str) -> None:
    token = encode_token(name)
    assert decode_token(token) == name
    assert not set(token) & set(".*> \t\r\n/")


@given(st.text())
def test_decoding_a_token_returns_a_name_or_raises_a_value_error(token: str) -> None:
    try:
        name = decode_token(token)
    except ValueError:
        return
    assert encode_token(name) == token


@pytest.mark.parametrize("token", ["%64ecode-1", "decode%2D1", "meta%2fllama", "a%", "a%2"])
def test_a_name_has_no_second_token(token: str) -> None:
    """Otherwise another key could replace or remove a worker, whose own key stays as it was."""
    with pytest.raises(ValueError, match="token"):
        decode_token(token)


@given(st.text(max_size=60), st.binary(max_size=200))
def test_any_bytes_on_any_subject_are_decoded(subject: str, data: bytes) -> None:
    assert isinstance(CODEC.decode(subject, data), Event | Rejected)


@given(st.binary(max_size=400))
def test_any_bytes_on_a_real_subject_are_decoded(data: bytes) -> None:
    assert isinstance(CODEC.decode(SUBJECTS.load("m", "p", "w"), data), Rejected)


@given(short_names, short_names, short_names, counts, st.lists(samples, min_size=1, max_size=5))
def test_json_and_msgpack_report_the_same_load(
    model: str, pool: str, worker: str, incarnation: int, frame: list[WorkerSample]
) -> None:
    report = LoadReport(model, pool, worker, incarnation, frame)
    subject = SUBJECTS.load(model, pool, worker)
    ranks = dict.fromkeys(sample.rank for sample in frame)
    newest = [max((one for one in frame if one.rank == rank), key=lambda one: one.sequence) for rank in ranks]
    expected = LoadReported(model, pool, worker, incarnation, newest)
    assert CODEC.decode(subject, encode(report)) == expected
    assert CODEC.decode(subject, msgspec.msgpack.encode(report)) == expected


few_ranks = st.builds(WorkerSample, sequence=st.integers(0, 9), timestamp_ms=counts, rank=st.integers(0, 3))


@given(st.lists(st.lists(few_ranks, min_size=1, max_size=9), min_size=2, max_size=2))
def test_the_samples_that_a_frame_supersedes_itself_change_nothing(frames: list[list[WorkerSample]]) -> None:
    record = WorkerRecord("m", "decode", "w0", "decode", incarnation=1, data_parallel_size=2)
    whole, decoded = (fleet_of(PoolKnobs("decode", "decode")) for _ in range(2))
    for fleet in (whole, decoded):
        assert fleet.register(RegisteredWorker(record, 1), 0) is None
    for now, frame in enumerate(frames, start=1):
        event = CODEC.decode(SUBJECTS.load(*record.names), encode(LoadReport(*record.names, 1, frame)))
        assert isinstance(event, LoadReported)
        whole.ingest(LoadReported(*record.names, 1, frame), now)
        decoded.ingest(event, now)
        assert decoded == whole


@given(short_names, short_names, traffic_samples)
def test_json_and_msgpack_report_the_same_traffic(model: str, frontend: str, sample: TrafficSample) -> None:
    report = TrafficReport(model, frontend, 1, sample)
    subject = SUBJECTS.traffic(model, frontend)
    event = CODEC.decode(subject, encode(report))
    assert not isinstance(event, Rejected)
    assert CODEC.decode(subject, msgspec.msgpack.encode(report)) == event


VERSIONED: dict[str, msgspec.Struct] = {
    "load_report": LoadReport("m", "p", "w", 1, [WorkerSample(sequence=1, timestamp_ms=1)]),
    "traffic_report": TrafficReport("m", "f", 1, TrafficSample(sequence=1, interval_ms=1, arrivals=0)),
    "decision_applied": DecisionApplied("d", "m", 1, 2, "s", "done"),
    "drain_command": DrainCommand("d", "m", "p", "w", "decode", 1, 2, 3),
    "worker_record": WorkerRecord("m", "p", "w", "decode", 1),
    "decision": Decision("d", "m", 1, 2, 3, 4, (), ()),
}


@pytest.mark.parametrize("name", VERSIONED)
@pytest.mark.parametrize("pack", [msgspec.json.encode, msgspec.msgpack.encode])
def test_versions_may_differ_by_optional_fields_only(name: str, pack: Any) -> None:
    message = VERSIONED[name]
    kind = type(message)
    body = msgspec.to_builtins(message)
    assert decode_as(kind, pack(body)) == message, "optional fields that are missing take their defaults"
    newer = {**body, "field_of_tomorrow": {"deep": [1, "x", None]}}
    assert decode_as(kind, pack(newer)) == message, "fields that are not known are ignored"
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    assert required
    for field in required:
        older = {key: value for key, value in body.items() if key != field}
        outcome = decode_as(kind, pack(older))
        assert isinstance(outcome, Rejected)
        assert outcome.reason is Rejection.INVALID
        assert field in outcome.detail


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES)
@given(data=st.binary(max_size=100))
def test_decoding_never_raises(kind: type[msgspec.Struct], data: bytes) -> None:
    assert isinstance(decode_as(kind, data), kind | Rejected)
    assert isinstance(decode_decision(data), Decision | Rejected)


def test_the_last_of_duplicate_keys_wins() -> None:
    head, samples = b'{"model":"m","pool":"p","worker":"w"', b'"samples":[{"sequence":1,"timestamp_ms":1}]}'
    frame = head + b',"incarnation":1,"incarnation":2,' + samples
    event = CODEC.decode(SUBJECTS.load("m", "p", "w"), frame)
    assert isinstance(event, LoadReported)
    assert event.incarnation == 2
