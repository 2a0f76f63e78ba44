"""Reasons for decisions and holds: a closed list of codes, their sentences, and the explanations made of them."""

from enum import StrEnum

from msgspec import Struct

from loadline.core.vocabulary.scalars import Role


class ReasonCode(StrEnum):
    """Reason for a recommendation, a limit or a hold. Append only: programs match on the values."""

    # planners: reasons for a change
    PREFILL_QUEUE_HIGH = "prefill_queue_high"
    PREFILL_QUEUE_LOW = "prefill_queue_low"
    KV_USAGE_HIGH = "kv_usage_high"
    KV_USAGE_LOW = "kv_usage_low"
    ASKED_AGAIN = "asked_again"
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
    FIRST_WORKER = "first_worker"
    LOAD_HIGH = "load_high"
    LOAD_LOW = "load_low"
    THROUGHPUT_FLOOR = "throughput_floor"
    QUEUEING_TARGET = "queueing_target"
    SATURATION_HIGH = "saturation_high"
    SATURATION_LOW = "saturation_low"
    SPARE_CAPACITY = "spare_capacity"
    # planners: reasons for no change
    SATURATION_WITHIN = "saturation_within"
    WITHIN_THRESHOLDS = "within_thresholds"
    NO_WORKERS = "no_workers"
    NO_DATA = "no_data"
    ADJUSTMENT_INTERVAL = "adjustment_interval"
    WORKERS_PENDING = "workers_pending"
    QUEUE_TREND_FALLING = "queue_trend_falling"
    NEW_WORKER_GRACE = "new_worker_grace"
    NO_FIXED_COUNT = "no_fixed_count"
    WITHIN_TOLERANCE = "within_tolerance"
    UNKNOWN_WORKERS = "unknown_workers"
    METRIC_MISSING = "metric_missing"
    PROFILE_UNUSABLE = "profile_unusable"
    SLA_INFEASIBLE = "sla_infeasible"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    TRAFFIC_UNKNOWN = "traffic_unknown"
    TRAFFIC_INCOMPLETE = "traffic_incomplete"
    FORECAST_FALLBACK = "forecast_fallback"
    LOAD_LEARNING = "load_learning"
    LOAD_WITHIN = "load_within"
    CONSOLIDATION_REFUSED = "consolidation_refused"
    PLANNER_FAILED = "planner_failed"
    # planners: limits on their own recommendation
    HIGHEST_RECOMMENDATION = "highest_recommendation"
    LOWEST_RECOMMENDATION = "lowest_recommendation"
    PEAK_OVER = "peak_over"
    SCALE_UP_LIMIT = "scale_up_limit"
    SCALE_RATE = "scale_rate"
    SCALING_POLICY = "scaling_policy"
    # hybrid planner: arbitration between saturation and the queueing model
    SATURATION_VETO = "saturation_veto"
    SHRINK_UNSAFE = "shrink_unsafe"
    SATURATION_LEADS = "saturation_leads"
    QUEUEING_LEADS = "queueing_leads"
    QUEUEING_STAYS = "queueing_stays"
    SATURATION_ALONE = "saturation_alone"
    QUEUEING_ALONE = "queueing_alone"
    NO_OPINION = "no_opinion"
    ENGINE_LEARNING = "engine_learning"
    SHRINK_STEPWISE = "shrink_stepwise"
    REPLACEMENT_NOT_READY = "replacement_not_ready"
    # allocation of limited GPUs
    CAPACITY_LIMITED = "capacity_limited"
    QUOTA_LIMITED = "quota_limited"
    GIVES_WAY = "gives_way"
    SERVED_BY_ANOTHER_POOL = "served_by_another_pool"
    SERVES_FOR_ANOTHER_POOL = "serves_for_another_pool"
    GPUS_OCCUPIED = "gpus_occupied"
    # guardrails
    REPLICAS_MIN = "replicas_min"
    REPLICAS_MAX = "replicas_max"
    GPU_BUDGET_MAX = "gpu_budget_max"
    GPU_BUDGET_MIN = "gpu_budget_min"
    GPU_BUDGET_GUARD_HOLD = "gpu_budget_guard_hold"
    GPU_BUDGET_RECONCILE = "gpu_budget_reconcile"
    GPU_BUDGET_GIVES_WAY = "gpu_budget_gives_way"
    FLEET_GPU_BUDGET_MAX = "fleet_gpu_budget_max"
    FLEET_GPU_BUDGET_MIN = "fleet_gpu_budget_min"
    NO_DATA_NO_SHRINK = "no_data_no_shrink"
    STEP_UP = "step_up"
    STEP_DOWN = "step_down"
    STABILISATION = "stabilisation"
    WARM_UP = "warm_up"
    COOLDOWN = "cooldown"
    PENDING_UNREACHED = "pending_unreached"
    IDLE = "idle"
    LAST_WORKER = "last_worker"
    SCHEDULE_FLOOR = "schedule_floor"
    UNACCEPTED = "unaccepted"
    DRAIN_LIMIT = "drain_limit"
    # obstacles to any decision
    NOT_LEADER = "not_leader"
    NOT_SETTLED = "not_settled"
    PAUSED = "paused"
    BUS_DOWN = "bus_down"
    DECISION_IN_FLIGHT = "decision_in_flight"
    RETRY_BACKOFF = "retry_backoff"
    ADVISE_ONLY = "advise_only"
    STOPPING = "stopping"


SENTENCES: dict[ReasonCode, str] = {
    ReasonCode.PREFILL_QUEUE_HIGH: (
        "mean prefill queue {mean:.2f} exceeds {threshold:g}, and {predicted:.2f} are forecast for when a new worker "
        "can help"
    ),
    ReasonCode.PREFILL_QUEUE_LOW: "mean prefill queue {mean:.2f} is below {threshold:g}",
    ReasonCode.KV_USAGE_HIGH: "mean KV load {mean:.2f} exceeds {threshold:g}",
    ReasonCode.KV_USAGE_LOW: "mean KV load {mean:.2f} is below {threshold:g}",
    ReasonCode.ASKED_AGAIN: (
        "the target is decided again: a scaler requested it, a worker must drain, the number of workers differs from "
        "the target, or etcd has lost the decision"
    ),
    ReasonCode.FIXED_COUNT: "the configured count is {replicas:g}",
    ReasonCode.KV_USAGE_TARGET: "KV usage per worker is {value:.2f}, target {target:g}: {wanted:g} workers needed",
    ReasonCode.WAITING_REQUESTS_TARGET: (
        "{value:.2f} requests wait per worker, target {target:g}: {wanted:g} workers needed"
    ),
    ReasonCode.PREFILL_REQUESTS_TARGET: (
        "{value:.2f} prefills are in flight per worker, target {target:g}: {wanted:g} workers needed"
    ),
    ReasonCode.CONCURRENCY_TARGET: (
        "{concurrency:.2f} requests are in flight, target {target:g} per worker: {wanted:g} workers needed"
    ),
    ReasonCode.PANIC: (
        "panic mode: {concurrency:.2f} requests are in flight, target {target:g} per worker; at least {allowed:g} "
        "workers for {left_ms:g} ms"
    ),
    ReasonCode.FLOW_CONTROL_QUEUE: (
        "{value:g} requests wait for workers that accept them, target {target:g} per worker: {wanted:g} workers needed"
    ),
    ReasonCode.POOL_SATURATION: "workers are saturated to {value:.2f}, target {target:g}: {wanted:g} workers needed",
    ReasonCode.PREFILL_BACKLOG: (
        "waiting prompts take {value:.2f} s of prefill, target {target:g} s per worker: {wanted:g} workers needed"
    ),
    ReasonCode.LATENCY_RATIO: (
        "latencies are {value:.2f} of their objectives, the target is {low:g} to {high:g}: {wanted:g} workers needed"
    ),
    ReasonCode.THROUGHPUT_TARGET: (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} input and {osl_tokens:.0f} output tokens occupy "
        "{busy:.2f} workers: {wanted:g} workers needed, {allowed:g} in this interval"
    ),
    ReasonCode.TRAFFIC_SURGE: (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} input and {osl_tokens:.0f} output tokens exceed the "
        "forecast and occupy {busy:.2f} workers: {wanted:g} workers needed"
    ),
    ReasonCode.FIRST_WORKER: (
        "{wanted:g} raised to {allowed:g}: {under_way:g} requests are outstanding and no worker serves the role"
    ),
    ReasonCode.LOAD_HIGH: (
        "the load of every worker exceeds {target:.0f}, which gives {latency_ms:g} ms; the lowest is {least:.0f}"
    ),
    ReasonCode.LOAD_LOW: "worker loads are at most {most:.0f}, below {target:.0f}: one worker fewer suffices",
    ReasonCode.THROUGHPUT_FLOOR: "{wanted:g} raised to {allowed:g}: the forecast traffic needs it",
    ReasonCode.QUEUEING_TARGET: (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} input and {osl_tokens:.0f} output tokens are expected, "
        "and {backlog_requests_per_s:.2f} requests/s of backlog; the pool gets {takes:.2f} of these, one worker serves "
        "{serves:.2f}, and {busy:.2f} workers are busy: {wanted:g} workers needed, {allowed:g} in this interval"
    ),
    ReasonCode.SATURATION_HIGH: (
        "load needs {held:.2f} of {workers:g} workers, above a utilisation of {threshold:g}: {wanted:g} workers needed"
    ),
    ReasonCode.SATURATION_LOW: (
        "load needs {held:.2f} of {workers:g} workers at its recent peak, below a utilisation of {threshold:g} with "
        "fewer: {wanted:g} workers needed"
    ),
    ReasonCode.SPARE_CAPACITY: (
        "{unsaturated:g} of {workers:g} workers are not saturated, with a headroom of {kv:.2f} KV usage and "
        "{waiting:.1f} waiting requests each: {wanted:g} workers needed"
    ),
    ReasonCode.SATURATION_WITHIN: ("load needs {held:.2f} of {workers:g} workers, within the thresholds"),
    ReasonCode.WITHIN_THRESHOLDS: "all signals are within their thresholds",
    ReasonCode.NO_WORKERS: "no worker is ready",
    ReasonCode.NO_DATA: (
        "{fresh:g} of {ready:g} ready workers report, {known:g} of them the metrics that the planner needs"
    ),
    ReasonCode.ADJUSTMENT_INTERVAL: (
        "the last change was {age_ms:g} ms ago; the next one is possible after {interval_ms:g} ms"
    ),
    ReasonCode.WORKERS_PENDING: "{pending:g} workers are pending",
    ReasonCode.QUEUE_TREND_FALLING: (
        "mean prefill queue {mean:.2f} exceeds {threshold:g}, but only {predicted:.2f} are forecast for when a new "
        "worker can help"
    ),
    ReasonCode.NEW_WORKER_GRACE: (
        "a worker was added {age_ms:g} ms ago; scale-down is possible {grace_ms:g} ms after that"
    ),
    ReasonCode.NO_FIXED_COUNT: "no count is configured: the current target is kept",
    ReasonCode.WITHIN_TOLERANCE: "{value:.2f} per worker is within {tolerance:g} of the target {target:g}",
    ReasonCode.UNKNOWN_WORKERS: (
        "the load of {missing:g} silent and {starting:g} pending workers could reverse the decision"
    ),
    ReasonCode.METRIC_MISSING: "{known:g} of {metrics:g} metrics are known: no scale-down to {wanted:g}",
    ReasonCode.PROFILE_UNUSABLE: "the engine profile cannot be used",
    ReasonCode.SLA_INFEASIBLE: (
        "a single request takes {best_ms:.1f} ms, above the objective of {objective_ms:g} ms: raise the objective or "
        "use faster engines"
    ),
    ReasonCode.KV_CACHE_TOO_SMALL: (
        "a request holds {context_tokens:.0f} tokens on average, more than the KV cache of a worker "
        "({max_kv_tokens:g} tokens)"
    ),
    ReasonCode.TRAFFIC_UNKNOWN: "the traffic is unknown",
    ReasonCode.TRAFFIC_INCOMPLETE: "a frontend has stopped reporting: no scale-down",
    ReasonCode.FORECAST_FALLBACK: "the forecast failed and the last value is used",
    ReasonCode.LOAD_LEARNING: "{known:g} of {needed:g} required samples of load and latency are available",
    ReasonCode.LOAD_WITHIN: (
        "worker loads are between {least:.0f} and {most:.0f}; a load of {target:.0f} gives {latency_ms:g} ms"
    ),
    ReasonCode.CONSOLIDATION_REFUSED: "with one worker fewer, the others would exceed {latency_ms:g} ms",
    ReasonCode.PLANNER_FAILED: "the planner failed and the current target is kept; report this with the journal",
    ReasonCode.PEAK_OVER: (
        "{wanted:g} held at {allowed:g}: less than half of the forecast peak has arrived for {window_ms:g} ms"
    ),
    ReasonCode.HIGHEST_RECOMMENDATION: (
        "{wanted:g} held at {allowed:g}: the highest recommendation of the last {window_ms:g} ms"
    ),
    ReasonCode.LOWEST_RECOMMENDATION: (
        "{wanted:g} held at {allowed:g}: the lowest recommendation of the last {window_ms:g} ms"
    ),
    ReasonCode.SCALE_UP_LIMIT: "{wanted:g} limited to {allowed:g}: the largest scale-up of one sync",
    ReasonCode.SCALE_RATE: (
        "{wanted:g} limited to {allowed:g}: the largest change of {ready:g} ready workers in one tick"
    ),
    ReasonCode.SCALING_POLICY: "{wanted:g} limited to {allowed:g}: the largest change in {period_ms:g} ms",
    ReasonCode.SATURATION_VETO: (
        "the queueing model recommends {queueing:g} and saturation {saturation:g}: a saturated pool is not scaled down"
    ),
    ReasonCode.SHRINK_UNSAFE: (
        "the queueing model recommends {queueing:g}, but one worker fewer would saturate the others"
    ),
    ReasonCode.SATURATION_LEADS: ("saturation recommends {saturation:g}, the queueing model no more than {queueing:g}"),
    ReasonCode.QUEUEING_LEADS: "the queueing model recommends {queueing:g}, saturation {saturation:g}",
    ReasonCode.QUEUEING_STAYS: (
        "the queueing model needs all {queueing:g} workers, saturation recommends {saturation:g}"
    ),
    ReasonCode.SATURATION_ALONE: ("the queueing model has no recommendation, saturation recommends {saturation:g}"),
    ReasonCode.QUEUEING_ALONE: ("saturation has no recommendation, the queueing model recommends {queueing:g}"),
    ReasonCode.NO_OPINION: "neither saturation nor the queueing model has a recommendation",
    ReasonCode.ENGINE_LEARNING: "no engine profile is configured, and too few iterations have been measured",
    ReasonCode.REPLACEMENT_NOT_READY: (
        "{wanted:g} held at {allowed:g}: the ready workers of the other pools cannot carry the load"
    ),
    ReasonCode.SHRINK_STEPWISE: "{wanted:g} raised to {allowed:g}: a larger scale-down is not known to be safe",
    ReasonCode.CAPACITY_LIMITED: "{wanted:g} limited to {allowed:g}: models share {limit:g} GPUs",
    ReasonCode.QUOTA_LIMITED: "{wanted:g} limited to {allowed:g}: the quota of the namespace is {limit:g} GPUs",
    ReasonCode.GIVES_WAY: "{wanted:g} limited to {allowed:g}: GPUs are short and other models take precedence",
    ReasonCode.SERVED_BY_ANOTHER_POOL: (
        "{wanted:g} limited to {allowed:g}: GPUs are short and another pool serves the load"
    ),
    ReasonCode.SERVES_FOR_ANOTHER_POOL: (
        "{wanted:g} raised to {allowed:g}: GPUs are short and the pool serves the load of another"
    ),
    ReasonCode.GPUS_OCCUPIED: "{wanted:g} limited to {allowed:g}: {free:g} GPUs are free",
    ReasonCode.REPLICAS_MIN: "{wanted:g} raised to replicas_min {allowed:g}",
    ReasonCode.REPLICAS_MAX: "{wanted:g} limited to replicas_max {allowed:g}",
    ReasonCode.GPU_BUDGET_MAX: (
        "{wanted:g} limited to {allowed:g}: {gpus:g} GPUs would exceed gpu_budget_max {budget:g}"
    ),
    ReasonCode.GPU_BUDGET_MIN: (
        "{wanted:g} raised to {allowed:g}: {gpus:g} GPUs would be below gpu_budget_min {budget:g}"
    ),
    ReasonCode.GPU_BUDGET_GUARD_HOLD: (
        "{wanted:g} held at {allowed:g}: the GPU budget allows no step from {gpus:g} GPUs"
    ),
    ReasonCode.GPU_BUDGET_RECONCILE: (
        "{wanted:g} set to {allowed:g}: {gpus:g} GPUs are outside the GPU budget or the bounds of a pool"
    ),
    ReasonCode.GPU_BUDGET_GIVES_WAY: "{wanted:g} set to {allowed:g}: another model waits for GPUs",
    ReasonCode.FLEET_GPU_BUDGET_MAX: (
        "{wanted:g} limited to {allowed:g}: {gpus:g} GPUs of all models are occupied or reserved, "
        "fleet.gpu_budget_max is {budget:g}"
    ),
    ReasonCode.FLEET_GPU_BUDGET_MIN: (
        "{wanted:g} raised to {allowed:g}: {gpus:g} GPUs of all models are occupied or reserved, "
        "fleet.gpu_budget_min is {budget:g}"
    ),
    ReasonCode.NO_DATA_NO_SHRINK: "{wanted:g} held at {allowed:g}: only {fresh:g} of {ready:g} ready workers report",
    ReasonCode.STEP_UP: "{wanted:g} limited to {allowed:g}: the largest step up",
    ReasonCode.STEP_DOWN: "{wanted:g} raised to {allowed:g}: the largest step down",
    ReasonCode.STABILISATION: "{wanted:g} held at {allowed:g}: the highest proposal of the last {window_ms:g} ms",
    ReasonCode.WARM_UP: (
        "{wanted:g} held at {allowed:g}: data has been complete for {age_ms:g} ms, scale-down needs {needed_ms:g} ms"
    ),
    ReasonCode.COOLDOWN: (
        "{wanted:g} held at {allowed:g}: the last change was {age_ms:g} ms ago, the cooldown is {cooldown_ms:g} ms"
    ),
    ReasonCode.PENDING_UNREACHED: "{missing:g} requested workers are not ready within their deadline",
    ReasonCode.IDLE: "{wanted:g} limited to {allowed:g}: the model has had no requests for {idle_ms:g} ms",
    ReasonCode.LAST_WORKER: (
        "{wanted:g} raised to {allowed:g}: each role keeps a worker until the model scales to zero"
    ),
    ReasonCode.SCHEDULE_FLOOR: (
        "{wanted:g} raised to {allowed:g}: the minimum of a schedule that ends in {left_ms:g} ms"
    ),
    ReasonCode.UNACCEPTED: "{wanted:g} held at {allowed:g}: no scaler has accepted the last scale-down",
    ReasonCode.DRAIN_LIMIT: "{wanted:g} raised to {allowed:g}: at most {drains_max:g} workers of a pool drain at once",
    ReasonCode.NOT_LEADER: "this agent is not the leader, or its lease is about to expire",
    ReasonCode.NOT_SETTLED: "the registry or the decisions have not been read yet",
    ReasonCode.PAUSED: "the model is paused",
    ReasonCode.BUS_DOWN: "NATS is unreachable",
    ReasonCode.DECISION_IN_FLIGHT: "a decision is being committed",
    ReasonCode.RETRY_BACKOFF: "the last decision was not applied; the next attempt is in {left_ms:g} ms",
    ReasonCode.ADVISE_ONLY: "no_operation is set: the decision is not executed",
    ReasonCode.STOPPING: "the agent is stopping",
}
"""Sentence of each code: a format string over ``Reason.numbers``."""


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
        text = SENTENCES[self.code].format(**self.numbers)
        text = f"{text}: {self.detail}" if self.detail else text
        return f"{self.pool}: {text}" if self.pool else text


class RoleDemand(Struct, frozen=True):
    """Demand on the pools of one role, and the capacity of one worker of each pool."""

    role: Role
    demand: float
    """Demand in any unit, such as requests per second; at least 0."""
    capacities: dict[str, float]
    """Demand that one worker serves, by pool; pools that cannot meet the objectives are absent."""


class Recommendation(Struct, frozen=True):
    """Result of a planner: targets by pool, with reasons. A pool without a target keeps its current one."""

    planner: str
    targets: dict[str, int]
    reasons: tuple[Reason, ...]
    inputs: dict[str, float]
    demands: tuple[RoleDemand, ...] = ()
    """Demands by role, from planners that can express one pool's capacity in terms of another's."""


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
