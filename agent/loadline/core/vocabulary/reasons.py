"""Reasons for decisions and holds: a closed list of codes, and the explanations made of them."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from loadline.core.vocabulary.scalars import Role
from loadline.core.vocabulary.sentences import SENTENCES
from loadline.core.vocabulary.templates import fill_in


class ReasonCode(StrEnum):
    """Reason for a recommendation, a limit or a hold. Values are stable, since programs match on them."""

    # reasons of planners for a count
    PREFILL_QUEUE_HIGH = "prefill_queue_high"
    PREFILL_QUEUE_LOW = "prefill_queue_low"
    KV_USAGE_HIGH = "kv_usage_high"
    KV_USAGE_LOW = "kv_usage_low"
    FIXED_COUNT = "fixed_count"
    KV_USAGE_TARGET = "kv_usage_target"
    WAITING_REQUESTS_TARGET = "waiting_requests_target"
    PREFILL_REQUESTS_TARGET = "prefill_requests_target"
    CONCURRENCY_TARGET = "concurrency_target"
    PANIC = "panic"
    FLOW_CONTROL_QUEUE = "flow_control_queue"
    POOL_SATURATION = "pool_saturation"
    PREFILL_BACKLOG = "prefill_backlog"
    LATENCY_RATIO = "latency_ratio"
    THROUGHPUT_TARGET = "throughput_target"
    TRAFFIC_SURGE = "traffic_surge"
    LOAD_HIGH = "load_high"
    LOAD_LOW = "load_low"
    WORKER_QUEUE_HIGH = "worker_queue_high"
    THROUGHPUT_MINIMUM = "throughput_minimum"
    QUEUEING_TARGET = "queueing_target"
    SATURATION_HIGH = "saturation_high"
    SATURATION_LOW = "saturation_low"
    HEADROOM_CAPACITY = "headroom_capacity"
    DEMAND_TARGET = "demand_target"
    BACKLOG_TARGET = "backlog_target"
    SATURATED_TARGET = "saturated_target"
    OCCUPANCY_TARGET = "occupancy_target"
    LATENCY_HIGH = "latency_high"
    SHARED_DEMAND = "shared_demand"
    # reasons of planners to keep the current target
    LATENCY_UNAFFECTED = "latency_unaffected"
    SATURATION_WITHIN = "saturation_within"
    WITHIN_THRESHOLDS = "within_thresholds"
    ADJUSTMENT_INTERVAL = "adjustment_interval"
    WORKERS_PENDING = "workers_pending"
    QUEUE_TREND_FALLING = "queue_trend_falling"
    NEW_WORKER_GRACE = "new_worker_grace"
    NO_FIXED_COUNT = "no_fixed_count"
    WITHIN_TOLERANCE = "within_tolerance"
    LOAD_WITHIN = "load_within"
    CONSOLIDATION_REFUSED = "consolidation_refused"
    OTHER_POOL_FIRST = "other_pool_first"
    SILENT_WORKERS = "silent_workers"
    # inputs that planners lack, and failures
    NO_WORKERS = "no_workers"
    NO_DATA = "no_data"
    UNKNOWN_WORKERS = "unknown_workers"
    METRIC_MISSING = "metric_missing"
    PROFILE_UNUSABLE = "profile_unusable"
    SLA_INFEASIBLE = "sla_infeasible"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    TRAFFIC_UNKNOWN = "traffic_unknown"
    TRAFFIC_INCOMPLETE = "traffic_incomplete"
    FORECAST_FALLBACK = "forecast_fallback"
    FORECAST_TOO_SHORT = "forecast_too_short"
    LOAD_LEARNING = "load_learning"
    ENGINE_LEARNING = "engine_learning"
    CAPACITY_LEARNING = "capacity_learning"
    PENDING_UNREACHED = "pending_unreached"
    PLANNER_FAILED = "planner_failed"
    # limits of planners on their own recommendation
    HIGHEST_RECOMMENDATION = "highest_recommendation"
    LOWEST_RECOMMENDATION = "lowest_recommendation"
    RECENT_PEAK = "recent_peak"
    PEAK_OVER = "peak_over"
    LATENCY_LIMIT = "latency_limit"
    SCALE_UP_LIMIT = "scale_up_limit"
    SCALE_RATE = "scale_rate"
    SCALING_POLICY = "scaling_policy"
    SCALE_DOWN_MARGIN = "scale_down_margin"
    SURGE_ADDS_ONLY = "surge_adds_only"
    FORECAST_STEP = "forecast_step"
    UNPROVEN_LOAD = "unproven_load"
    TRIAL_PENDING = "trial_pending"
    ARRIVALS_RISING = "arrivals_rising"
    BACKLOG_PASSED_ON = "backlog_passed_on"
    SHRINK_REVERSED = "shrink_reversed"
    SHRINK_STEPWISE = "shrink_stepwise"
    # hybrid planner: arbitration between saturation and the queueing model
    SATURATION_VETO = "saturation_veto"
    SHRINK_UNSAFE = "shrink_unsafe"
    SATURATION_LEADS = "saturation_leads"
    QUEUEING_LEADS = "queueing_leads"
    QUEUEING_KEEPS = "queueing_keeps"
    SATURATION_ALONE = "saturation_alone"
    QUEUEING_ALONE = "queueing_alone"
    NO_RECOMMENDATION = "no_recommendation"
    # scale to and from zero
    FIRST_WORKER = "first_worker"
    IDLE = "idle"
    LAST_WORKER = "last_worker"
    # allocation of limited GPUs
    CAPACITY_LIMITED = "capacity_limited"
    QUOTA_LIMITED = "quota_limited"
    GIVES_WAY = "gives_way"
    UNNEEDED_GIVES_WAY = "unneeded_gives_way"
    SERVED_BY_ANOTHER_POOL = "served_by_another_pool"
    SERVES_FOR_ANOTHER_POOL = "serves_for_another_pool"
    # guardrails
    REPLICAS_MIN = "replicas_min"
    REPLICAS_MAX = "replicas_max"
    SCHEDULE_MINIMUM = "schedule_minimum"
    GPU_BUDGET_MAX = "gpu_budget_max"
    GPU_BUDGET_MIN = "gpu_budget_min"
    GPU_BUDGET_HOLD = "gpu_budget_hold"
    GPU_BUDGET_RECONCILE = "gpu_budget_reconcile"
    GPU_BUDGET_GIVES_WAY = "gpu_budget_gives_way"
    FLEET_GPU_BUDGET_MAX = "fleet_gpu_budget_max"
    FLEET_GPU_BUDGET_MIN = "fleet_gpu_budget_min"
    GPUS_OCCUPIED = "gpus_occupied"
    NO_DATA_NO_SHRINK = "no_data_no_shrink"
    STEP_UP = "step_up"
    STEP_DOWN = "step_down"
    STABILISATION = "stabilisation"
    WARM_UP = "warm_up"
    COOLDOWN = "cooldown"
    REPLACEMENT_NOT_READY = "replacement_not_ready"
    UNACCEPTED = "unaccepted"
    DRAIN_LIMIT = "drain_limit"
    UNNUMBERED_WORKER = "unnumbered_worker"
    MOVED_WORKER = "moved_worker"
    # obstacles to a decision
    NOT_LEADER = "not_leader"
    NOT_SETTLED = "not_settled"
    PAUSED = "paused"
    BUS_DOWN = "bus_down"
    DECISION_IN_FLIGHT = "decision_in_flight"
    DECISION_UNFINISHED = "decision_unfinished"
    RETRY_BACKOFF = "retry_backoff"
    STOPPING = "stopping"
    HANDING_OVER = "handing_over"
    # kinds of decisions
    DECIDED_AGAIN = "decided_again"
    ADVISE_ONLY = "advise_only"


class Reason(Struct, frozen=True, omit_defaults=True):
    """A code with the numbers behind it; ``pool`` is empty for a reason of the whole model."""

    code: ReasonCode
    pool: str = ""
    numbers: dict[str, float] = {}
    detail: str = ""

    @classmethod
    def of(cls, code: ReasonCode, pool: str = "", **numbers: float) -> "Reason":
        """Return a reason with its numbers as floats, so that a round trip through the journal leaves it unchanged."""
        return cls(code, pool, {name: float(value) for name, value in numbers.items()})

    def sentence(self) -> str:
        """Return the sentence of the code with its numbers, preceded by the pool and followed by the detail."""
        text = fill_in(SENTENCES[self.code], self.numbers)
        text = f"{text}: {self.detail}" if self.detail else text
        return f"{self.pool}: {text}" if self.pool else text


class RoleDemand(Struct, frozen=True):
    """Demand on the pools of one role, and the capacity of one worker of each pool."""

    role: Role
    demand: float
    """Demand in any unit, such as requests per second; at least 0."""
    capacities: dict[str, float]
    """Demand that one worker serves, by pool; pools that cannot meet the objectives are absent."""


Estimator = Literal["forecast", "surge", "backlog", "profile", "fitted", "saturated", "latency", "occupancy"]


class SizeEstimate(Struct, frozen=True, omit_defaults=True):
    """Workers of a pool that one estimator of a planner says are needed."""

    pool: str
    estimator: Estimator
    workers: float | None = None
    """Workers needed; None: it has no estimate."""
    confidence: float | None = None
    """1 minus the half-width of its 95 % interval relative to the estimate, 0..1; None: it has no estimate."""
    basis: str = ""
    """Data that it comes from, or the cause why there is none."""


class Recommendation(Struct, frozen=True):
    """Result of a planner: targets by pool, with reasons. A pool without a target keeps its current one."""

    planner: str
    targets: dict[str, int]
    reasons: tuple[Reason, ...]
    inputs: dict[str, float]
    demands: tuple[RoleDemand, ...] = ()
    """Demands by role, from planners that can express one pool's capacity in terms of another's."""
    victims: dict[str, tuple[str, ...]] = {}
    """Workers that pools should lose first when they shrink, by pool; for the others the cheapest to remove are."""
    estimates: tuple[SizeEstimate, ...] = ()
    """Estimates behind the recommendation, from planners that combine several."""
    unneeded: dict[str, int] = {}
    """Workers that the load does not need and that pools keep until a shrink is safe, by pool; others come first."""
    lasting: dict[str, int] = {}
    """Workers that the arrivals of a pool needed lately, without those for a backlog, by pool. While GPUs are short,
    pools are served by their part of this count; those left out by their part of the recommended one."""


class Explanation(Struct, frozen=True):
    """Derivation of a decision or a hold: inputs, recommendations, applied limits and resulting targets."""

    model: str
    at_ms: int
    outcome: str  # decided | advised | held
    decision_id: str
    current: dict[str, int]
    recommendations: tuple[Recommendation, ...]
    limits: tuple[Reason, ...]
    targets: dict[str, int]
    superseded_by: str = ""
    """Decision that took its place before any scaler had accepted it."""
