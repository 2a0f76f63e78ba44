"""What the rescheduler of a model goes by. Keys that Llumnix has too are named, and preset, as its flags are."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.migrations import MigrationOrder, MigrationRule

PolicyName = Literal[
    "decode_load",
    "neutral_load",
    "prefill_failover",
    "decode_failover",
    "neutral_failover",
    "binpacking_mitigation",
    "binpacking_consolidation",
]
MetricName = Literal[
    "kv_cache_usage_ratio_projected",
    "decode_batch_size",
    "all_decodes_tokens_num",
    "all_prefills_tokens_num",
    "num_waiting_requests",
    "num_requests",
    "num_tokens",
    "predicted_tpot",
]
FailoverDomain = Literal["instance", "node", "instance-unit", "node-unit"]

PACKING: Final[tuple[PolicyName, ...]] = ("binpacking_consolidation", "binpacking_mitigation")
"""What ``enable_adaptive_pd`` adds."""
_ANSWER_MS: Final = 5_000
"""For a command, where ``llumlet_grpc_timeout_seconds`` does not say."""


class MigrationKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests move between workers, and when."""

    enabled: Annotated[bool, Meta(description="Whether requests of this model move between workers.")] = False
    policies: Annotated[
        tuple[PolicyName, ...],
        Meta(max_length=16, description="What moves requests; of two that want a worker, the first."),
    ] = ("decode_load", "prefill_failover", "decode_failover", "neutral_failover")
    interval_ms: Annotated[
        int,
        Meta(
            ge=10, le=3_600_000, description="How often all workers are looked at; a new sample has its own looked at."
        ),
    ] = 500
    decode_load_metric: Annotated[MetricName, Meta(description="Load of decode workers.")] = (
        "kv_cache_usage_ratio_projected"
    )
    decode_load_threshold: Annotated[
        float,
        Meta(ge=0, le=1e12, description="decode_load moves from workers at or above it to workers below; 0: any."),
    ] = 1.0
    prefill_load_metric: Annotated[
        MetricName, Meta(description="Load of prefill workers: of those that can take over, the least loaded do.")
    ] = "kv_cache_usage_ratio_projected"
    neutral_load_metric: Annotated[MetricName, Meta(description="Load of aggregated workers.")] = (
        "kv_cache_usage_ratio_projected"
    )
    neutral_load_threshold: Annotated[
        float,
        Meta(ge=0, le=1e12, description="neutral_load moves from workers at or above it to workers below; 0: any."),
    ] = 1.0
    load_balance_threshold: Annotated[
        float, Meta(ge=0, le=1e12, description="Least difference of load between the two workers of a move by load.")
    ] = 0.7
    load_balance_scope: Annotated[
        Literal["cluster", "unit"], Meta(description="Whether load moves between all workers, or within each unit.")
    ] = "cluster"
    req_select_rule: Annotated[MigrationRule, Meta(description="What req_select_value counts, of moves by load.")] = (
        "TOKEN"
    )
    req_select_order: Annotated[
        MigrationOrder, Meta(description="Who goes first of the requests of a worker, in moves by load.")
    ] = "SR"
    req_select_value: Annotated[
        float,
        Meta(ge=-1, le=1e12, description="Least that a move by load takes; of tokens and ratios up to half the gap."),
    ] = 1024.0
    failover_domain: Annotated[
        FailoverDomain,
        Meta(description="What fails together with a worker: its node, its data-parallel unit, or both."),
    ] = "instance-unit"
    instance_staleness_seconds: Annotated[
        int,
        Meta(
            ge=1, le=86_400, description="A worker that has requests and whose samples do not change for so long hangs."
        ),
    ] = 60
    suspect_after_ms: Annotated[
        int,
        Meta(ge=100, le=3_600_000, description="A worker that is silent for so long is failing, where most are heard."),
    ] = 4_000
    enable_adaptive_pd: Annotated[
        bool, Meta(description="Add binpacking_consolidation and binpacking_mitigation to the policies.")
    ] = False
    tpot_slo: Annotated[
        Annotated[float, Meta(gt=0, le=1e6)] | None,
        Meta(description="Time per output token that bin packing fills workers up to, in ms; none: objectives.itl_ms."),
    ] = None
    tpot_slo_dispatch_threshold: Annotated[
        float, Meta(gt=0, le=1, description="Share of tpot_slo below which a worker may take requests.")
    ] = 0.85
    tpot_migrate_out_ceil_threshold: Annotated[
        float, Meta(gt=0, le=10, description="Share of tpot_slo from which a worker gives requests away.")
    ] = 0.95
    tpot_migrate_out_floor_threshold: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of tpot_slo below which a worker is emptied, where others hold it all."),
    ] = 0.60
    tpot_profiling_data_path: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Profile of time per output token by batch and tokens of a request, JSON, from this file on; "
            "empty: the decode profiles of the pools.",
        ),
    ] = ""
    llumlet_grpc_timeout_seconds: Annotated[
        float, Meta(ge=-1, le=60, description="How long a worker may take to answer a migrate command; 0 or less: 5 s.")
    ] = -1.0
    migrate_drains: Annotated[bool, Meta(description="Move the requests of workers that drain to others.")] = True
    ttl_ms: Annotated[
        int, Meta(ge=100, le=3_600_000, description="How long a move may take; past it, what was not moved stays.")
    ] = 30_000
    migrations_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Most requests of the model that move at a time.")
    ] = 64
    migrations_per_worker_max: Annotated[
        int,
        Meta(
            ge=1, le=1_024, description="Most requests that a worker moves, or takes in, at a time, whatever it says."
        ),
    ] = 16
    across_pools: Annotated[
        bool, Meta(description="Move between all pools of a role, where engines can read each other's KV cache.")
    ] = False
    hops_max: Annotated[
        int, Meta(ge=0, le=1_000, description="A request that was moved so often is moved no more by load or packing.")
    ] = 3
    breaker_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="A worker that does not answer is not asked for so long; doubles.")
    ] = 5_000
    breaker_max_ms: Annotated[int, Meta(ge=1, le=3_600_000, description="Longest such time.")] = 60_000
    consolidate_after_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="A worker is emptied once it could have been for so long.")
    ] = 10_000
    link_gbytes_per_s: Annotated[
        float,
        Meta(gt=0, le=1e6, description="KV cache that goes from one worker to another in a second, in 10^9 bytes."),
    ] = 10.0
    kv_bytes_per_token: Annotated[
        int, Meta(ge=1, le=1_000_000_000, description="KV cache of a token over all layers, in bytes.")
    ] = 131_072

    @property
    def active_policies(self) -> tuple[PolicyName, ...]:
        """All that are in force, in their order, each once."""
        added = PACKING if self.enable_adaptive_pd else ()
        return tuple(dict.fromkeys((*self.policies, *added)))

    @property
    def answer_ms(self) -> int:
        """How long a worker may take to answer."""
        seconds = self.llumlet_grpc_timeout_seconds
        return int(seconds * 1_000) if seconds > 0 else _ANSWER_MS

    def copy_ms(self, tokens: float) -> float:
        """How long the KV cache of so many tokens takes from one worker to another."""
        return tokens * self.kv_bytes_per_token / (self.link_gbytes_per_s * 1e6)
