"""Records of Dynamo's engines: what is read, what is refused, and the samples made from them."""

import random
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.sources.dynamo_records import (
    RECORD_BYTES_MAX,
    DynamoEngine,
    ForwardPassMetrics,
    RecordRefused,
    read_envelope,
    read_frames,
)
from tests.support.sources import accepted, envelope, forward_pass, framed, idle_pass

RECORD = WorkerRecord("m", "p", "7587", "decode", 1, data_parallel_size=2, kv_blocks_total=1_000, block_size_tokens=16)


def parsed(**fields: Any) -> ForwardPassMetrics:
    record = read_envelope(envelope(forward_pass(**fields)))
    assert record is not None
    return record


def test_both_forms_of_a_zeromq_message_give_the_same_record() -> None:
    raw = [b"", bytes(8), msgspec.msgpack.encode(forward_pass())]
    assert read_frames(raw) == (parsed(), "")
    assert read_frames(framed(forward_pass(), subject="s")) == (parsed(), "s")


def test_an_envelope_of_another_topic_is_no_record() -> None:
    assert read_envelope(envelope({"stored": []}, topic="kv-events")) is None


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "frames"),
        ([b"x"] * 5, "frames"),
        ([b"", bytes(8), b"\xff garbage"], "record"),
        ([b"", bytes(8), b"\xc1" * 100], "record"),
        ([b"", bytes(8), msgspec.msgpack.encode(["a", "list"])], "record"),
        ([b"", bytes(8), bytes(RECORD_BYTES_MAX + 1)], "oversized"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(version=2))], "version"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(worker=""))], "no_worker_id"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(worker="7\x1587"))], "record"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(worker="7587\n"))], "record"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(wall_time=float("nan")))], "record"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(wall_time=-1.0))], "record"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(dp_rank="0"))], "record"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(dp_rank=4_096))], "record"),
        ([b"", bytes(8), msgspec.msgpack.encode(forward_pass(queued_requests={"num_prefill_requests": -1}))], "record"),
        ([b"", b"", b"", b"\x01\x00"], "frame_header"),
        ([b"", b"", b"", b"\x01\x00\x00\x00\x09{}"], "frame_header"),
        ([b"", b"", b"", b"\x01\x00\x00\x00\x02{}"], "envelope"),
        ([b"", bytes(8), b"\x91" * 10_000], "record"),
    ],
)
def test_what_is_no_record_is_refused_with_a_reason(frames: list[bytes], reason: str) -> None:
    with pytest.raises(RecordRefused) as refused:
        read_frames(frames)
    assert refused.value.reason == reason


def test_any_bytes_give_a_record_or_a_refusal() -> None:
    noise = random.Random(7)
    good = framed(forward_pass())
    for _ in range(2_000):
        frames = [bytearray(frame) for frame in good]
        for _ in range(noise.randrange(1, 6)):
            damaged = frames[3]
            damaged[noise.randrange(len(damaged))] = noise.randrange(256)
        with suppress(RecordRefused):
            read_frames([bytes(frame) for frame in frames])


def test_a_sample_has_the_newest_counts_and_the_means_of_all_iterations() -> None:
    engine = DynamoEngine(RECORD)
    engine.put(parsed(wall_time=0.125, scheduled_requests={"num_decode_requests": 1}))
    engine.put(parsed(wall_time=0.0625))
    (sample,) = engine.take_samples()
    assert sample == WorkerSample(
        0,
        0,
        kv_blocks_used=286,  # 512 + 64 + 4,000 tokens in blocks of 16
        kv_blocks_total=1_000,
        waiting_requests=4,
        running_requests=5,
        queued_prefill_tokens=1_000,
        active_prefill_tokens=512,
        decode_tokens=4_000,
        decode_batch_requests=4,
        itl_ms=(125 + 4 * 62.5) / 5,
        iteration_ms=93.75,
    )


@pytest.mark.parametrize(
    ("fields", "field", "bound"),
    [
        ({"queued_requests": {"num_prefill_requests": 10**7, "num_decode_requests": 1}}, "waiting_requests", 10**7),
        (
            {"scheduled_requests": {"num_prefill_requests": 1, "num_decode_requests": 65_536}},
            "running_requests",
            65_536,
        ),
        (
            {"queued_requests": {"sum_prefill_tokens": 1, "sum_decode_kv_tokens": 10**12}},
            "queued_prefill_tokens",
            10**12,
        ),
    ],
)
def test_agents_accept_the_largest_numbers_of_a_record(fields: dict[str, Any], field: str, bound: int) -> None:
    engine = DynamoEngine(RECORD)
    engine.put(parsed(**fields))
    (sample,) = engine.take_samples()
    assert getattr(sample, field) == bound
    assert accepted(sample)


def test_silence_is_no_sample_and_idleness_is_zero() -> None:
    engine = DynamoEngine(RECORD)
    engine.put(parsed())
    assert len(engine.take_samples()) == 1
    assert engine.take_samples() == []
    assert not engine.is_empty()
    idle = read_envelope(envelope(idle_pass()))
    assert idle is not None
    engine.put(idle)
    (sample,) = engine.take_samples()
    assert (sample.waiting_requests, sample.running_requests, sample.itl_ms) == (0, 0, None)
    assert not engine.is_empty(), "one record may be older than what routers have sent"
    engine.put(replace(idle, counter_id=idle.counter_id + 1))
    assert engine.is_empty()


def test_each_rank_must_say_twice_since_the_command_that_it_is_empty() -> None:
    """Rank 0 computes a long prompt, of which its next record tells only at its end."""
    engine, idle = DynamoEngine(RECORD), read_envelope(envelope(idle_pass()))
    assert idle is not None
    for counter in range(1, 100):
        engine.put(replace(idle, counter_id=counter, dp_rank=0))
    for counter in range(1, 4):
        engine.put(replace(idle, counter_id=counter, dp_rank=1))
    engine.begin_drain()
    for counter in range(4, 10):
        engine.put(replace(idle, counter_id=counter, dp_rank=1))
    assert not engine.is_empty()
    for counter, is_idle in ((100, True), (101, False), (102, True)):
        one = idle if is_idle else parsed()
        engine.put(replace(one, counter_id=counter, dp_rank=0))
        assert not engine.is_empty()
    engine.put(replace(idle, counter_id=103, dp_rank=0))
    assert engine.is_empty()


def test_ranks_have_samples_of_their_own() -> None:
    engine = DynamoEngine(RECORD)
    engine.put(parsed(dp_rank=1, queued_requests={"num_prefill_requests": 9}))
    engine.put(parsed(dp_rank=0))
    assert [(one.rank, one.waiting_requests) for one in engine.take_samples()] == [(0, 4), (1, 9)]


def test_a_repeated_record_counts_once_and_a_restarted_counter_counts_again() -> None:
    engine = DynamoEngine(RECORD)
    for counter, wall_time in [(5_000, 0.1), (5_001, 0.2), (5_000, 0.9), (5_001, 0.9), (1, 0.3)]:
        engine.put(parsed(counter_id=counter, wall_time=wall_time))
    (sample,) = engine.take_samples()
    assert sample.iteration_ms == pytest.approx((100 + 200 + 300) / 3)


def test_more_tokens_than_blocks_hold_fill_the_cache_and_no_more() -> None:
    engine = DynamoEngine(RECORD)
    engine.put(parsed(scheduled_requests={"num_decode_requests": 9, "sum_decode_kv_tokens": 10**9}))
    (sample,) = engine.take_samples()
    assert sample.kv_blocks_used == sample.kv_blocks_total == 1_000
