"""Knobs of migration. Keys of Llumnix keep its defaults, and its names without the prefix ``rescheduling_``."""

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

DRAIN: Final = "drain"
"""Policy that empties draining workers. It precedes all others."""
PACKING: Final[tuple[PolicyName, ...]] = ("binpacking_consolidation", "binpacking_mitigation")
"""Policies that ``enable_adaptive_pd`` adds."""
_ANSWER_MS: Final = 5_000
"""Timeout of a command if ``llumlet_grpc_timeout_seconds`` sets none."""


class MigrationKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the migration of requests between workers."""

    enabled: Annotated[bool, Meta(description="Migrate requests of this model between its workers.")] = False
    policies: Annotated[
        tuple[PolicyName, ...],
        Meta(max_length=16, description="Migration policies, highest precedence first."),
    ] = ("decode_load", "prefill_failover", "decode_failover", "neutral_failover")
    interval_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=3_600_000,
            description="Interval of evaluations of all workers; a worker that reports is evaluated at once.",
        ),
    ] = 500
    decode_load_metric: Annotated[MetricName, Meta(description="Load metric of decode workers.")] = (
        "kv_cache_usage_ratio_projected"
    )
    decode_load_threshold: Annotated[
        float,
        Meta(
            ge=0,
            le=1e12,
            description="decode_load migrates from workers with at least this load to those with less; 0: between "
            "any two.",
        ),
    ] = 1.0
    prefill_load_metric: Annotated[
        MetricName,
        Meta(description="Load metric of prefill workers; the least loaded replace failed ones."),
    ] = "kv_cache_usage_ratio_projected"
    neutral_load_metric: Annotated[MetricName, Meta(description="Load metric of aggregated workers.")] = (
        "kv_cache_usage_ratio_projected"
    )
    neutral_load_threshold: Annotated[
        float,
        Meta(
            ge=0,
            le=1e12,
            description="neutral_load migrates from workers with at least this load to those with less; 0: between "
            "any two.",
        ),
    ] = 1.0
    load_balance_threshold: Annotated[
        float, Meta(ge=0, le=1e12, description="Smallest load gap between two workers that load policies act on.")
    ] = 0.7
    load_balance_scope: Annotated[
        Literal["cluster", "unit"],
        Meta(description="Balance load between all workers, or within each data-parallel unit."),
    ] = "cluster"
    req_select_rule: Annotated[MigrationRule, Meta(description="Unit of req_select_value.")] = "TOKEN"
    req_select_order: Annotated[
        MigrationOrder,
        Meta(description="Order in which load policies migrate a worker's requests: see docs/reference/protocol.md."),
    ] = "SR"
    req_select_value: Annotated[
        float,
        Meta(
            ge=-1,
            le=1e12,
            description="Minimum that a load policy migrates; TOKEN and RATIO migrate up to half the load gap.",
        ),
    ] = 1024.0
    failover_domain: Annotated[
        FailoverDomain,
        Meta(description="Workers that fail together: those of a node, of a data-parallel unit, or of both."),
    ] = "instance-unit"
    instance_staleness_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="Time after which a worker with requests whose samples do not change counts as failed.",
        ),
    ] = 60
    suspect_after_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=3_600_000,
            description="Time after which a silent worker counts as failed, unless most workers are silent.",
        ),
    ] = 4_000
    enable_adaptive_pd: Annotated[
        bool, Meta(description="Add binpacking_consolidation and binpacking_mitigation to the policies.")
    ] = False
    tpot_slo: Annotated[
        Annotated[float, Meta(gt=0, le=1e6)] | None,
        Meta(description="Objective of bin packing for the time per output token, in ms; none: objectives.itl_ms."),
    ] = None
    tpot_slo_dispatch_threshold: Annotated[
        float, Meta(gt=0, le=1, description="Fraction of tpot_slo below which a worker may receive requests.")
    ] = 0.85
    tpot_migrate_out_ceil_threshold: Annotated[
        float, Meta(gt=0, le=10, description="Fraction of tpot_slo at which a worker sends requests.")
    ] = 0.95
    tpot_migrate_out_floor_threshold: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Fraction of tpot_slo below which a worker is emptied, if all its requests fit elsewhere.",
        ),
    ] = 0.60
    tpot_profiling_data_path: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Profile of the time per output token by batch and tokens of a request, JSON, relative to this "
            "file; empty: the decode profiles of the pools.",
        ),
    ] = ""
    llumlet_grpc_timeout_seconds: Annotated[
        float, Meta(ge=-1, le=60, description="Time for a worker to answer a migrate command; 0 or less: 5 s.")
    ] = -1.0
    migrate_drains: Annotated[bool, Meta(description="Migrate the requests of draining workers.")] = True
    ttl_ms: Annotated[
        int,
        Meta(ge=100, le=3_600_000, description="Time limit of a migration; requests that have not migrated then stay."),
    ] = 30_000
    migrations_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Maximum requests of the model in migration at a time.")
    ] = 64
    migrations_per_worker_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_024,
            description="Maximum requests that a worker sends or receives at a time, even if it reports more "
            "migration slots.",
        ),
    ] = 16
    across_pools: Annotated[
        bool,
        Meta(description="Migrate between all pools of a role, whose engines must have compatible KV caches."),
    ] = False
    hops_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000,
            description="Migrations of a request after which load and bin packing policies no longer migrate it.",
        ),
    ] = 3
    breaker_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="Time for which a worker that did not answer gets no commands; doubles with each failure.",
        ),
    ] = 5_000
    breaker_max_ms: Annotated[
        int,
        Meta(ge=1, le=3_600_000, description="Longest time for which a worker that did not answer gets no commands."),
    ] = 60_000
    consolidate_after_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=3_600_000,
            description="Time for which all requests of a worker must fit elsewhere before it is emptied.",
        ),
    ] = 10_000
    link_gbytes_per_s: Annotated[
        float,
        Meta(gt=0, le=1e6, description="Rate of KV cache transfer between two workers, in 10^9 bytes per second."),
    ] = 10.0
    kv_bytes_per_token: Annotated[
        int, Meta(ge=1, le=1_000_000_000, description="Size of the KV cache of one token over all layers, in bytes.")
    ] = 131_072

    @property
    def active_policies(self) -> tuple[PolicyName, ...]:
        """Policies in force by precedence, each once."""
        added = PACKING if self.enable_adaptive_pd else ()
        return tuple(dict.fromkeys((*self.policies, *added)))

    @property
    def answer_ms(self) -> int:
        """Timeout of a command, in ms."""
        seconds = self.llumlet_grpc_timeout_seconds
        return int(seconds * 1_000) if seconds > 0 else _ANSWER_MS

    def copy_ms(self, tokens: float) -> float:
        """Return the time in ms to copy the KV cache of ``tokens`` from one worker to another."""
        return tokens * self.kv_bytes_per_token / (self.link_gbytes_per_s * 1e6)
