"""Protobuf messages of Llumnix 1: what its engines store in Redis, and what its agents (llumlets) answer to."""

from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from loadline.adapters.protobuf_tables import ProtobufPackage
from loadline.core.vocabulary.rejections import Rejection
from loadline.sources.llumnix_status import LlumnixInstance, LlumnixStatus
from loadline.wire.codec import Rejected, reject

_METADATA: Final = """
1 instance_id string; 2 instance_type string; 3 backend_type string; 4 ip string; 5 ip_kvs string;
6 api_server_port int32; 7 llumlet_port int32; 8 kvt_port int32; 9 node_id string; 10 data_parallel_size int32;
11 tensor_parallel_size int32; 12 unit_id string; 13 dp_rank int32; 16 utc_create double; 17 utc_update double;
19 block_size int32; 20 max_num_batched_tokens int32
"""
_STATUS: Final = """
1 instance_id string; 2 schedulable bool; 3 timestamp_ms int64; 5 update_id int32;
8 hybrid_scheduler_waiting_to_decode_requests_num int32; 9 scheduler_waiting_to_decode_requests_num int32;
10 num_waiting_requests int32; 11 scheduler_running_to_decode_requests_num int32; 12 num_running_requests int32;
13 num_loading_requests int32; 14 num_total_gpu_tokens int32; 15 num_used_gpu_tokens int32;
17 num_unallocated_tokens_hybrid_scheduler_waiting_decodes int32;
18 hybrid_scheduler_waiting_to_decode_tokens_num int32;
20 scheduler_waiting_to_decode_tokens_num int32; 21 num_uncomputed_tokens_scheduler_running_prefills int32;
22 num_unallocated_tokens_scheduler_running_prefills int32; 23 scheduler_running_to_decode_tokens_num int32;
24 num_tokens_loading_requests int32; 25 num_uncomputed_tokens_all_waiting_prefills int32; 26 num_migrate_in_reqs int32;
27 num_migrate_out_reqs int32; 28 num_available_migrate_in_slots int32; 29 num_available_migrate_out_slots int32
"""
_MIGRATE_REQUEST: Final = """
1 src_engine_id string; 2 dst_engine_id string; 3 dst_engine_ip string; 4 dst_engine_port int32;
5 migration_type string; 6 migration_req_policy string; 7 num_reqs int64 *; 8 num_tokens int64 *;
9 kv_cache_usage_ratio float *; 10 trigger_policy string
"""
_MIGRATE_RESPONSE: Final = "1 success bool; 2 message string"
_STORED: Final = ProtobufPackage("cms", {"InstanceMetadata": _METADATA, "InstanceStatus": _STATUS})
_CALLED: Final = ProtobufPackage(
    "llumlet", {"MigrateRequest": _MIGRATE_REQUEST, "MigrateResponse": _MIGRATE_RESPONSE}, oneof="migration_value"
)
InstanceMetadata: Final = _STORED.message("InstanceMetadata")
InstanceStatus: Final = _STORED.message("InstanceStatus")
MigrateRequest: Final = _CALLED.message("MigrateRequest")
MigrateResponse: Final = _CALLED.message("MigrateResponse")
MIGRATE_METHOD: Final = "/llumlet.Llumlet/Migrate"

VALUE_BYTES_MAX: Final = 262_144
"""Largest value: a status lists the ids of its waiting requests, which this source does not need."""
S = TypeVar("S", LlumnixInstance, LlumnixStatus)


def read_instance(key: str, value: bytes) -> LlumnixInstance | Rejected:
    """Return the description of an engine, or the reason of its refusal. Never raises."""
    return _read(InstanceMetadata, LlumnixInstance, key, value)


def read_status(key: str, value: bytes) -> LlumnixStatus | Rejected:
    """Return the status of an engine, or the reason of its refusal. Never raises."""
    return _read(InstanceStatus, LlumnixStatus, key, value)


def _read(message: Any, kind: type[S], key: str, value: bytes) -> S | Rejected:
    if len(value) > VALUE_BYTES_MAX:
        return reject(Rejection.OVERSIZED, key, f"{len(value)} bytes, {VALUE_BYTES_MAX} are allowed")
    try:
        parsed = message.FromString(value)
    except DecodeError as error:
        return reject(Rejection.MALFORMED, key, str(error))
    try:
        return msgspec.convert({name: getattr(parsed, name) for name in kind.__struct_fields__}, kind)
    except msgspec.ValidationError as error:
        return reject(Rejection.INVALID, key, str(error))
