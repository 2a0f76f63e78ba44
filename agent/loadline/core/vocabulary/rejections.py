"""Reasons for refusing external input: a closed list of codes."""

from enum import StrEnum


class Rejection(StrEnum):
    """Reason for refusing external input. Append only, as ``ReasonCode``."""

    # by the codec
    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    INVALID = "invalid"
    TOO_DEEP = "too_deep"
    SUBJECT_UNKNOWN = "subject_unknown"
    SUBJECT_MISMATCH = "subject_mismatch"
    # by the fleet, compared with its state
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_POOL = "unknown_pool"
    UNKNOWN_WORKER = "unknown_worker"
    ROLE_MISMATCH = "role_mismatch"
    STALE_INCARNATION = "stale_incarnation"
    UNKNOWN_INCARNATION = "unknown_incarnation"
    NOT_NEWER = "not_newer"
    RANK_OUT_OF_RANGE = "rank_out_of_range"
    KV_INCONSISTENT = "kv_inconsistent"
    WORKERS_FULL = "workers_full"
    FRONTENDS_FULL = "frontends_full"
    UNKNOWN_DECISION = "unknown_decision"
    UNKNOWN_DRAIN = "unknown_drain"
    POOL_FULL = "pool_full"
    DRAINS_FULL = "drains_full"
    WORKER_MOVED = "worker_moved"
