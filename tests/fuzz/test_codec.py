"""Whatever the bytes and the subject are: an event or a ``Rejected``, never an exception."""

import random
from collections import Counter

import msgspec
import pytest

from loadline.core.vocabulary.events import WorkerDrained
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import Histogram, TrafficSample, WorkerRecord, WorkerSample
from loadline.core.vocabulary.status import AgentStatus
from loadline.wire import codec
from loadline.wire.codec import (
    Codec,
    Rejected,
    decode_as,
    decode_decision,
    decode_learned,
    decode_worker_record,
)
from loadline.wire.keys import Keys
from loadline.wire.messages import LoadReport, ScalingDecision, TrafficReport
from loadline.wire.subjects import encode_token
from tests.fuzz.mutation import HOSTILE_JSON, mutate, regrown
from tests.fuzz.targets.wire import (
    APPLIED,
    DRAINED,
    LOAD,
    MODEL,
    POOL,
    REPORTS,
    SUBJECTS,
    TRAFFIC,
    WORKER,
    check_outcome,
)


def new_codec(frame_bytes_max: int = 65_536) -> Codec:
    return Codec(SUBJECTS, frame_bytes_max)


def reason_of(outcome: object) -> Rejection:
    assert isinstance(outcome, Rejected), outcome
    return outcome.reason


def test_every_seed_is_an_event_in_both_encodings() -> None:
    decoder = new_codec()
    for subject, message in REPORTS.items():
        from_json = decoder.decode(subject, codec.encode(message))
        assert not isinstance(from_json, Rejected)
        assert decoder.decode(subject, msgspec.msgpack.encode(message)) == from_json
        assert decoder.decode(subject, b" \r\n\t" + codec.encode(message)) == from_json


def test_one_hundred_thousand_mutants_are_events_or_rejected() -> None:
    rng = random.Random(20_231_116)
    decoder = new_codec()
    frames = [(s, encode(m)) for s, m in REPORTS.items() for encode in (codec.encode, msgspec.msgpack.encode)]
    outcomes: Counter[str] = Counter()
    for _ in range(80_000):
        subject, frame = rng.choice(frames)
        outcomes[check_outcome(decoder.decode(subject, mutate(rng, frame)))] += 1
    for _ in range(20_000):
        subject, message = rng.choice(list(REPORTS.items()))
        outcomes[check_outcome(decoder.decode(subject, regrown(rng, codec.encode(message))))] += 1
    assert outcomes.total() == 100_000
    # The fuzz is worth its time only while it reaches past the first check and into every kind of refusal.
    for outcome in ("event", Rejection.MALFORMED, Rejection.INVALID, Rejection.SUBJECT_MISMATCH):
        assert outcomes[outcome] > 500, outcomes


def test_random_bytes_on_random_subjects() -> None:
    rng = random.Random(7)
    decoder = new_codec()
    pieces = [
        "loadline",
        "v1",
        "load",
        "traffic",
        "applied",
        "drained",
        "",
        "%",
        "%00",
        "*",
        ">",
        "a",
        "%C3",
        "é",
        "\n",
    ]
    for _ in range(20_000):
        subject = ".".join(rng.choice(pieces) for _ in range(rng.randrange(8)))
        check_outcome(decoder.decode(subject, rng.randbytes(rng.randrange(40))))


@pytest.mark.parametrize("cut", range(0, max(len(codec.encode(message)) for message in REPORTS.values()), 7))
def test_truncated_frames_are_rejected(cut: int) -> None:
    decoder = new_codec()
    for subject, message in REPORTS.items():
        for frame in (codec.encode(message), msgspec.msgpack.encode(message)):
            if cut < len(frame):
                assert reason_of(decoder.decode(subject, frame[:cut])) in {Rejection.MALFORMED, Rejection.INVALID}


@pytest.mark.parametrize("value", HOSTILE_JSON, ids=lambda v: repr(v[:12]))
def test_hostile_json_values_are_rejected_in_every_required_field(value: bytes) -> None:
    decoder = new_codec()
    frames = {
        "names": b'{"model":%b,"pool":"decode","worker":"w-1","incarnation":7,"samples":[]}',
        "count": b'{"model":"m","pool":"p","worker":"w","incarnation":1,"samples":[{"sequence":%b,"timestamp_ms":1}]}',
        "float": b'{"model":"m","pool":"p","worker":"w","incarnation":1,'
        b'"samples":[{"sequence":1,"timestamp_ms":1,"kv_usage_ratio":2,"itl_ms":%b}]}',
    }
    for frame in frames.values():
        assert isinstance(decoder.decode(SUBJECTS.load("m", "p", "w"), frame % value), Rejected)


@pytest.mark.parametrize("field", ["kv_usage_ratio", "itl_ms", "ttft_ms", "isl_tokens"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), -1.0, 1e13])
def test_msgpack_numbers_outside_their_bounds_are_invalid(field: str, number: float) -> None:
    body = {"model": "m", "pool": "p", "worker": "w", "incarnation": 1}
    frame = msgspec.msgpack.encode(body | {"samples": [{"sequence": 1, "timestamp_ms": 1, field: number}]})
    assert reason_of(new_codec().decode(SUBJECTS.load("m", "p", "w"), frame)) is Rejection.INVALID


def test_nesting_bombs_are_too_deep() -> None:
    decoder = new_codec(1_000_000)
    assert reason_of(decoder.decode(LOAD, b'{"x":' + b"[" * 900_000)) is Rejection.TOO_DEEP
    assert reason_of(decoder.decode(LOAD, b"\x81\xa1x" + b"\x91" * 900_000)) is Rejection.TOO_DEEP


def test_text_that_is_not_utf8_is_malformed() -> None:
    assert reason_of(new_codec().decode(LOAD, b'{"model":"\xff\xfe"}')) is Rejection.MALFORMED
    assert reason_of(new_codec().decode(LOAD, b"\x81\xa5model\xa2\xff\xfe")) is Rejection.MALFORMED


def test_frames_over_the_limit_are_not_read() -> None:
    frame = codec.encode(REPORTS[LOAD])
    assert isinstance(new_codec(len(frame)).decode(LOAD, frame), Rejected) is False
    assert reason_of(new_codec(len(frame) - 1).decode(LOAD, frame)) is Rejection.OVERSIZED


@pytest.mark.parametrize("name", ["\x00", "a\nb", "a\n", "\n", "", "a" * 101, "a" * 10_000])
def test_hostile_names_in_the_subject_are_refused(name: str) -> None:
    frame = codec.encode(LoadReport("m", "p", name, 1, [WorkerSample(sequence=1, timestamp_ms=1)]))
    assert reason_of(new_codec().decode(SUBJECTS.load("m", "p", name), frame)) is Rejection.SUBJECT_UNKNOWN


@pytest.mark.parametrize("name", ["*", ">", "a.b", "a/b", "é", "😀", " ", "~", "a" * 100])
def test_odd_names_are_one_token_and_arrive(name: str) -> None:
    frame = codec.encode(LoadReport("m", "p", name, 1, [WorkerSample(sequence=1, timestamp_ms=1)]))
    event = new_codec().decode(SUBJECTS.load("m", "p", name), frame)
    assert not isinstance(event, Rejected)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "loadline",
        "loadline.v1",
        "loadline.v1.load",
        "loadline.v1.load.m.p",
        "loadline.v1.load.m.p.w.x",
        "loadline.v1.decision.m",
        "loadline.v2.load.m.p.w",
        "other.v1.load.m.p.w",
        "loadline.v1.load.m.p.%77",
        "loadline.v1.load.m.p.%ff",
        "loadline.v1.load.m.p.%",
        "loadline.v1.load.m..w",
        "load.m.p.w",
    ],
)
def test_subjects_that_carry_no_message_are_unknown(subject: str) -> None:
    frame = codec.encode(LoadReport("m", "p", "w", 1, [WorkerSample(sequence=1, timestamp_ms=1)]))
    assert reason_of(new_codec().decode(subject, frame)) is Rejection.SUBJECT_UNKNOWN


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (SUBJECTS.load("other", POOL, WORKER), REPORTS[LOAD]),
        (SUBJECTS.load(MODEL, "other", WORKER), REPORTS[LOAD]),
        (SUBJECTS.load(MODEL, POOL, "other"), REPORTS[LOAD]),
        (SUBJECTS.traffic("other", "fe-1"), REPORTS[TRAFFIC]),
        (SUBJECTS.traffic(MODEL, "other"), REPORTS[TRAFFIC]),
        (SUBJECTS.applied("other"), REPORTS[APPLIED]),
        (SUBJECTS.drained("other", POOL, WORKER), REPORTS[DRAINED]),
        (SUBJECTS.drained(MODEL, "other", WORKER), REPORTS[DRAINED]),
        (SUBJECTS.drained(MODEL, POOL, "other"), REPORTS[DRAINED]),
        (SUBJECTS.by_name("drained", "other"), REPORTS[DRAINED]),
    ],
)
def test_subject_and_payload_must_name_the_same(subject: str, message: msgspec.Struct) -> None:
    assert reason_of(new_codec().decode(subject, codec.encode(message))) is Rejection.SUBJECT_MISMATCH


@pytest.mark.parametrize(
    ("subject", "message", "detail"),
    [
        (SUBJECTS.load("other", POOL, "w2"), REPORTS[LOAD], f"the payload names {MODEL!r}, {WORKER!r} instead"),
        (SUBJECTS.traffic(MODEL, "other"), REPORTS[TRAFFIC], "the payload names 'fe-1' instead"),
        (SUBJECTS.by_name("drained", "other"), REPORTS[DRAINED], f"the payload names {WORKER!r} instead"),
    ],
)
def test_a_refusal_tells_how_the_payload_differs_from_its_subject(
    subject: str, message: msgspec.Struct, detail: str
) -> None:
    outcome = new_codec().decode(subject, codec.encode(message))
    assert isinstance(outcome, Rejected)
    assert (outcome.subject, outcome.detail) == (subject, detail)


def test_the_former_subject_of_drains_is_decoded_too() -> None:
    event = new_codec().decode(SUBJECTS.by_name("drained", WORKER), codec.encode(REPORTS[DRAINED]))
    assert event == WorkerDrained(MODEL, POOL, WORKER, 7)


def test_more_kv_blocks_used_than_there_are_is_inconsistent() -> None:
    samples = [WorkerSample(sequence=1, timestamp_ms=1, kv_blocks_used=10, kv_blocks_total=9)]
    frame = codec.encode(LoadReport(MODEL, POOL, WORKER, 1, samples))
    assert reason_of(new_codec().decode(LOAD, frame)) is Rejection.KV_INCONSISTENT


@pytest.mark.parametrize("field", ["running_requests", "migration_slots_in", "decode_batch_requests"])
def test_a_claim_that_no_engine_can_make_is_invalid(field: str) -> None:
    samples = [WorkerSample(1, 1, **{field: 10**8})]  # type: ignore[arg-type]
    frame = codec.encode(LoadReport(MODEL, POOL, WORKER, 1, samples))
    assert reason_of(new_codec().decode(LOAD, frame)) is Rejection.INVALID


@pytest.mark.parametrize(
    "sample",
    [
        TrafficSample(sequence=1, interval_ms=1, arrivals=0, completed=1, ttft_met=2),
        TrafficSample(sequence=1, interval_ms=1, arrivals=0, completed=1, itl_met=2),
        TrafficSample(sequence=1, interval_ms=1, arrivals=0, completed=1, both_met=2),
        TrafficSample(sequence=1, interval_ms=1, arrivals=0, isl_histogram=Histogram((1.0,), (1,))),
        TrafficSample(sequence=1, interval_ms=1, arrivals=0, osl_histogram=Histogram((2.0, 1.0), (1, 1, 1))),
        TrafficSample(sequence=1, interval_ms=1, arrivals=0, osl_histogram=Histogram((1.0, 1.0), (1, 1, 1))),
        TrafficSample(sequence=1, interval_ms=1, arrivals=0, isl_histogram=Histogram((5e-324,), (1, 1))),
        TrafficSample(sequence=1, interval_ms=1, arrivals=0, osl_histogram=Histogram((0.0, 5e-324), (1, 1, 1))),
        TrafficSample(sequence=1, interval_ms=1, arrivals=1, isl_tokens=5e-324),
        TrafficSample(sequence=1, interval_ms=1, arrivals=1, itl_ms=5e-324),
        TrafficSample(sequence=1, interval_ms=1, arrivals=9 * 10**15),
    ],
)
def test_traffic_that_contradicts_itself_is_invalid(sample: TrafficSample) -> None:
    frame = codec.encode(TrafficReport(MODEL, "fe-1", 1, sample))
    assert reason_of(new_codec().decode(TRAFFIC, frame)) is Rejection.INVALID


def test_the_route_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_ROUTES_MAX", 8)
    decoder = new_codec()
    for index in range(100):
        decoder.decode(SUBJECTS.drained(MODEL, POOL, f"w-{index}"), b"{}")
        assert len(decoder._routes) <= 8


def test_store_values_are_checked_against_their_key() -> None:
    record = WorkerRecord(MODEL, POOL, WORKER, "decode", 1)
    value = codec.encode(record)
    assert decode_worker_record(("workers", MODEL, POOL, WORKER), value) == record
    for key in [("workers", MODEL, POOL, "other"), ("leader", MODEL, POOL, WORKER), ("workers",), ()]:
        assert reason_of(decode_worker_record(key, value)) is Rejection.SUBJECT_MISMATCH
    assert reason_of(decode_worker_record(("workers", MODEL, POOL, WORKER), b"{")) is Rejection.MALFORMED


def test_a_key_of_another_program_is_not_decoded_segment_by_segment() -> None:
    keys = Keys("default")
    assert keys.split(keys.worker("m/1", "p", "w")) == ("workers", "m/1", "p", "w")
    for rest in ("/a", "/%2F" * 500):
        with pytest.raises(ValueError, match="has more than 4 segments"):
            keys.split(keys.worker("m", "p", "w") + rest)


def test_store_values_and_requests_are_total_too() -> None:
    rng = random.Random(3)
    decision = ScalingDecision("d", MODEL, 1, 2, 3, 4, (), (), ttl_ms=5)
    for _ in range(5_000):
        data = mutate(rng, codec.encode(decision))
        decode_decision(data)
        decode_as(AgentStatus, data)
        decode_worker_record(("workers", "a", "b", "c"), data)
        decode_learned("m", data)
    assert reason_of(decode_as(AgentStatus, b" " * 2_000_000)) is Rejection.OVERSIZED


def test_refusals_are_safe_to_log() -> None:
    outcome = new_codec().decode("loadline.v1.load.\x1b[31m\n\u202e" + encode_token("x") * 9_000, b"{}")
    assert isinstance(outcome, Rejected)
    check_outcome(outcome)
