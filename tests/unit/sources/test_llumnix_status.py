"""Engines of Llumnix: values of its store, the samples made from them, and its load metrics of both."""

import random
from typing import Any

import pytest

from loadline.core.fleet.worker import WorkerState
from loadline.core.migration.measures import BATCH, DECODE_TOKENS, KV_NEEDED, KV_TOTAL, PREFILL_TOKENS, measures_of
from loadline.sources.config import WorkerKnobs
from loadline.sources.llumnix_messages import (
    VALUE_BYTES_MAX,
    InstanceMetadata,
    InstanceStatus,
    read_instance,
    read_status,
)
from loadline.wire.codec import Rejected
from tests.support.sources import accepted

POOL = WorkerKnobs("m", "p", "decode")
# Every field as on the wire, so that a wrong number or type in our tables shows.
STATUS_BYTES = bytes.fromhex("0a0161100118d20948015003580560066807701f")


def metadata(**fields: Any) -> bytes:
    known = {
        "instance_id": "a_dp0",
        "instance_type": "decode",
        "ip": "10.0.0.7",
        "ip_kvs": "10.1.0.7",
        "llumlet_port": 5_000,
        "kvt_port": 6_000,
        "node_id": "n1",
        "unit_id": "u1",
        "tensor_parallel_size": 4,
        "utc_create": 1_700_000_000.25,
        "block_size": 16,
        "max_num_batched_tokens": 8_192,
    }
    written: bytes = InstanceMetadata(**{**known, **fields}).SerializeToString()
    return written


def status(**fields: Any) -> bytes:
    written: bytes = InstanceStatus(**{"instance_id": "a_dp0", "schedulable": True, **fields}).SerializeToString()
    return written


def test_a_value_is_read_by_the_numbers_of_the_fields() -> None:
    read = InstanceStatus.FromString(STATUS_BYTES)
    assert (read.instance_id, read.schedulable, read.timestamp_ms) == ("a", True, 1_234)
    assert (read.scheduler_waiting_to_decode_requests_num, read.num_waiting_requests) == (1, 3)
    assert (read.scheduler_running_to_decode_requests_num, read.num_running_requests) == (5, 6)
    assert (read.num_loading_requests, read.num_total_gpu_tokens) == (7, 31)


def test_a_description_becomes_a_record() -> None:
    instance = read_instance("k", metadata())
    assert not isinstance(instance, Rejected)
    record = instance.record(POOL)
    assert (record.worker, record.incarnation, record.gpus) == ("a_dp0", 1_700_000_000_250, 4)
    assert (record.node, record.unit, record.block_size_tokens) == ("n1", "u1", 16)


@pytest.mark.parametrize("seed", range(20))
def test_load_metrics_of_a_sample_equal_those_of_llumnix(seed: int) -> None:
    numbers = random.Random(seed)
    names = [field.name for field in InstanceStatus.DESCRIPTOR.fields if field.type == field.TYPE_INT32]
    fields = {name: numbers.randrange(1, 2_000) for name in names}
    fields["num_total_gpu_tokens"], fields["num_used_gpu_tokens"] = 160_000, 16 * numbers.randrange(5_000)
    fields["hybrid_scheduler_waiting_to_decode_tokens_num"] += 2_000  # unallocated tokens are among them
    read, instance = read_status("k", status(**fields)), read_instance("k", metadata())
    assert not isinstance(read, Rejected)
    assert not isinstance(instance, Rejected)
    worker = WorkerState(instance.record(POOL), 0, registered_at_ms=0, latest=[read.sample(16)])
    measures = measures_of(worker)
    assert measures is not None
    assert measures[KV_TOTAL] == 160_000
    assert measures[KV_NEEDED] == (
        fields["num_used_gpu_tokens"]
        + fields["num_uncomputed_tokens_all_waiting_prefills"]
        + fields["num_unallocated_tokens_scheduler_running_prefills"]
        + fields["num_unallocated_tokens_hybrid_scheduler_waiting_decodes"]
    )
    assert measures[BATCH] == sum(
        fields[name]
        for name in (
            "hybrid_scheduler_waiting_to_decode_requests_num",
            "num_loading_requests",
            "scheduler_waiting_to_decode_requests_num",
            "scheduler_running_to_decode_requests_num",
        )
    )
    assert measures[DECODE_TOKENS] == sum(
        fields[name]
        for name in (
            "hybrid_scheduler_waiting_to_decode_tokens_num",
            "num_tokens_loading_requests",
            "scheduler_waiting_to_decode_tokens_num",
            "scheduler_running_to_decode_tokens_num",
        )
    )
    assert measures[PREFILL_TOKENS] == (
        fields["num_uncomputed_tokens_all_waiting_prefills"]
        + fields["num_uncomputed_tokens_scheduler_running_prefills"]
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\xff\xff", "malformed"),
        (bytes(VALUE_BYTES_MAX + 1), "oversized"),
        (status(num_waiting_requests=-1), "invalid"),
        (status(timestamp_ms=-5), "invalid"),
        (status(num_running_requests=2_000_000_000), "invalid"),
    ],
)
def test_other_values_are_refused_with_a_reason(value: bytes, reason: str) -> None:
    refused = read_status("k", value)
    assert isinstance(refused, Rejected)
    assert refused.reason == reason


@pytest.mark.parametrize(
    ("fields", "field", "bound"),
    [
        ({"num_available_migrate_in_slots": 2**31 - 1}, "migration_slots_in", 65_536),
        ({"num_available_migrate_out_slots": 2**31 - 1}, "migration_slots_out", 65_536),
        ({"num_running_requests": 65_536, "num_loading_requests": 1}, "running_requests", 65_536),
        (
            {"scheduler_waiting_to_decode_requests_num": 10**7, "num_loading_requests": 1},
            "waiting_to_decode_requests",
            10**7,
        ),
        ({"num_total_gpu_tokens": 2**31 - 1}, "kv_blocks_total", 10**9),
    ],
)
def test_agents_accept_the_largest_numbers_of_a_status(fields: dict[str, int], field: str, bound: int) -> None:
    read = read_status("k", status(**fields))
    assert not isinstance(read, Rejected)
    sample = read.sample(0)
    assert getattr(sample, field) == bound
    assert accepted(sample)


def test_any_bytes_give_a_status_or_a_refusal() -> None:
    noise, good = random.Random(3), status(num_running_requests=4, timestamp_ms=10**12)
    for _ in range(2_000):
        damaged = bytearray(good)
        damaged[noise.randrange(len(damaged))] = noise.randrange(256)
        read_status("k", bytes(damaged))
        read_instance("k", bytes(damaged))


def test_a_description_with_control_characters_or_without_a_name_is_refused() -> None:
    for name in ("", "a\nb", "x" * 101):
        assert isinstance(read_instance("k", metadata(instance_id=name)), Rejected)
