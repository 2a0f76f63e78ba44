"""Why something was done or not: explanations, and the closed list of reasons."""

from enum import StrEnum

from msgspec import Struct

from loadline.core.vocabulary.scalars import Role


class ReasonCode(StrEnum):
    """Why something was proposed, bounded or held. Append only: people and programs match on these words."""

    # planners: why a change
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
    # planners: why none
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
    # planners: what bounds their own recommendation
    HIGHEST_RECOMMENDATION = "highest_recommendation"
    PEAK_OVER = "peak_over"
    SCALE_UP_LIMIT = "scale_up_limit"
    SCALE_RATE = "scale_rate"
    # whose count counts where saturation and the queueing model both look
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
    # who gets what is short
    CAPACITY_LIMITED = "capacity_limited"
    QUOTA_LIMITED = "quota_limited"
    GIVES_WAY = "gives_way"
    SERVED_BY_ANOTHER_POOL = "served_by_another_pool"
    SERVES_FOR_ANOTHER_POOL = "serves_for_another_pool"
    GPUS_OCCUPIED = "gpus_occupied"
    # rails of the guard
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
    # why nothing may be decided now
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
        "mean prefill queue {mean:.2f} is above {threshold:g}, and still {predicted:.2f} when a new worker is of use"
    ),
    ReasonCode.PREFILL_QUEUE_LOW: "mean prefill queue {mean:.2f} is below {threshold:g}",
    ReasonCode.KV_USAGE_HIGH: "mean KV load {mean:.2f} is above {threshold:g}",
    ReasonCode.KV_USAGE_LOW: "mean KV load {mean:.2f} is below {threshold:g}",
    ReasonCode.ASKED_AGAIN: (
        "what stands is decided again: a scaler asked, a worker is to go, or there are too few or many"
    ),
    ReasonCode.FIXED_COUNT: ("the configuration says {replicas:g}"),
    ReasonCode.KV_USAGE_TARGET: "KV usage is {value:.2f} a worker and its target {target:g}: {wanted:g} workers",
    ReasonCode.WAITING_REQUESTS_TARGET: (
        "{value:.2f} requests wait a worker, the target is {target:g}: {wanted:g} workers"
    ),
    ReasonCode.PREFILL_REQUESTS_TARGET: (
        "{value:.2f} prefills are in flight a worker, the target is {target:g}: {wanted:g} workers"
    ),
    ReasonCode.CONCURRENCY_TARGET: "{concurrency:.2f} requests are in flight, {target:g} a worker: {wanted:g} workers",
    ReasonCode.PANIC: (
        "panic: {concurrency:.2f} requests are in flight, {target:g} a worker; not below {allowed:g} workers "
        "for {left_ms:g} ms"
    ),
    ReasonCode.THROUGHPUT_TARGET: (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} and {osl_tokens:.0f} tokens keep {busy:.2f} workers busy: "
        "{wanted:g} workers, {allowed:g} by this look"
    ),
    ReasonCode.TRAFFIC_SURGE: (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} and {osl_tokens:.0f} tokens are more than planned for, "
        "and keep {busy:.2f} workers busy: {wanted:g} workers"
    ),
    ReasonCode.FIRST_WORKER: (
        "{wanted:g} raised to {allowed:g}: nothing serves the role and {under_way:g} requests are under way; the "
        "planner says how many more"
    ),
    ReasonCode.LOAD_HIGH: (
        "every worker has more than the load of {target:.0f} that gives {latency_ms:g} ms; the least has {least:.0f}"
    ),
    ReasonCode.LOAD_LOW: "loads of workers are below {target:.0f}, at {most:.0f}: one less would do",
    ReasonCode.THROUGHPUT_FLOOR: "{wanted:g} raised to {allowed:g}: what the traffic to come needs",
    ReasonCode.QUEUEING_TARGET: (
        "{requests_per_s:.2f} requests/s of {isl_tokens:.0f} and {osl_tokens:.0f} tokens are planned for, and "
        "{backlog_requests_per_s:.2f} that wait too long; of these the pool takes {takes:.2f}, a worker serves "
        "{serves:.2f}, and {busy:.2f} are busy: "
        "{wanted:g} workers, {allowed:g} by this look"
    ),
    ReasonCode.SATURATION_HIGH: (
        "the load fills {held:.2f} of {workers:g} workers, above {threshold:g} of them: {wanted:g} workers"
    ),
    ReasonCode.SATURATION_LOW: (
        "the load fills {held:.2f} of {workers:g} workers, below {threshold:g} of fewer: {wanted:g} workers"
    ),
    ReasonCode.SPARE_CAPACITY: (
        "{unsaturated:g} of {workers:g} workers are not saturated, with KV usage {kv:.2f} and {waiting:.1f} waiting "
        "requests to spare each: {wanted:g} workers"
    ),
    ReasonCode.SATURATION_WITHIN: "the load fills {held:.2f} of {workers:g} workers: as many are needed",
    ReasonCode.WITHIN_THRESHOLDS: "signals are between their thresholds",
    ReasonCode.NO_WORKERS: "no worker is ready",
    ReasonCode.NO_DATA: "{fresh:g} of {ready:g} workers report, {known:g} of them what the pool is judged by",
    ReasonCode.ADJUSTMENT_INTERVAL: "the last change was {age_ms:g} ms ago, the next may be after {interval_ms:g} ms",
    ReasonCode.WORKERS_PENDING: "{pending:g} workers are on their way",
    ReasonCode.QUEUE_TREND_FALLING: (
        "mean prefill queue {mean:.2f} is above {threshold:g}, "
        "but it will be {predicted:.2f} when a new worker is of use"
    ),
    ReasonCode.NEW_WORKER_GRACE: "a worker was added {age_ms:g} ms ago, none is taken away for {grace_ms:g} ms",
    ReasonCode.NO_FIXED_COUNT: "no count is configured: what stands stays",
    ReasonCode.WITHIN_TOLERANCE: "{value:.2f} a worker is within {tolerance:g} of the target {target:g}",
    ReasonCode.UNKNOWN_WORKERS: "{missing:g} silent workers and {starting:g} on their way leave no sure direction",
    ReasonCode.METRIC_MISSING: "{known:g} of {metrics:g} metrics are known: no shrink to {wanted:g}",
    ReasonCode.PROFILE_UNUSABLE: "the engine profile cannot be used",
    ReasonCode.SLA_INFEASIBLE: (
        "even one request alone takes {best_ms:.1f} ms, the objective is {objective_ms:g} ms: raise it, or use "
        "engines that are faster"
    ),
    ReasonCode.KV_CACHE_TOO_SMALL: (
        "a request holds {context_tokens:.0f} tokens on average and the KV cache of a worker {max_kv_tokens:g}: not "
        "even one fits"
    ),
    ReasonCode.TRAFFIC_UNKNOWN: "the traffic is not known",
    ReasonCode.TRAFFIC_INCOMPLETE: "a frontend that was heard a minute ago is silent: nothing shrinks",
    ReasonCode.FORECAST_FALLBACK: "the forecast could not be had, the last value stands in",
    ReasonCode.LOAD_LEARNING: "{known:g} samples of load and latency are known, {needed:g} are needed",
    ReasonCode.LOAD_WITHIN: "loads are between {least:.0f} and {most:.0f}, and {target:.0f} gives {latency_ms:g} ms",
    ReasonCode.CONSOLIDATION_REFUSED: "with one worker less the others would miss {latency_ms:g} ms",
    ReasonCode.PLANNER_FAILED: "the planner has a fault, what stands stays: report it with the journal",
    ReasonCode.PEAK_OVER: (
        "{wanted:g} held at {allowed:g}: that is for a peak, and less than half of it has come for {window_ms:g} ms"
    ),
    ReasonCode.HIGHEST_RECOMMENDATION: "{wanted:g} held at {allowed:g}: the highest recommendation of {window_ms:g} ms",
    ReasonCode.SCALE_UP_LIMIT: "{wanted:g} cut to {allowed:g}: the most that one sync may reach",
    ReasonCode.SCALE_RATE: (
        "{wanted:g} bounded to {allowed:g}: the most that a tick may change {ready:g} ready workers to"
    ),
    ReasonCode.SATURATION_VETO: (
        "the queueing model wants {queueing:g} and saturation {saturation:g}: what is saturated does not shrink"
    ),
    ReasonCode.SHRINK_UNSAFE: "the queueing model wants {queueing:g}, but with one less the others would be saturated",
    ReasonCode.SATURATION_LEADS: "saturation wants {saturation:g}, the queueing model no more than {queueing:g}",
    ReasonCode.QUEUEING_LEADS: "the queueing model wants {queueing:g}, saturation {saturation:g}",
    ReasonCode.QUEUEING_STAYS: "the queueing model needs all {queueing:g}, saturation wants {saturation:g}",
    ReasonCode.SATURATION_ALONE: "the queueing model has no opinion, saturation wants {saturation:g}",
    ReasonCode.QUEUEING_ALONE: "saturation has no opinion, the queueing model wants {queueing:g}",
    ReasonCode.NO_OPINION: "neither saturation nor the queueing model has an opinion",
    ReasonCode.ENGINE_LEARNING: "no profile says what an engine takes, and its iterations do not yet",
    ReasonCode.REPLACEMENT_NOT_READY: (
        "{wanted:g} held at {allowed:g}: the workers of the other pools that are ready do not carry the load alone"
    ),
    ReasonCode.SHRINK_STEPWISE: "{wanted:g} raised to {allowed:g}: more less is not known to be safe",
    ReasonCode.CAPACITY_LIMITED: "{wanted:g} cut to {allowed:g}: not more of {limit:g} GPUs are left for it",
    ReasonCode.QUOTA_LIMITED: "{wanted:g} cut to {allowed:g}: the quota of its namespace is {limit:g} GPUs",
    ReasonCode.GIVES_WAY: "{wanted:g} cut to {allowed:g}: GPUs are short, it gives way to others",
    ReasonCode.SERVED_BY_ANOTHER_POOL: "{wanted:g} cut to {allowed:g}: GPUs are short, another pool serves for it",
    ReasonCode.SERVES_FOR_ANOTHER_POOL: "{wanted:g} raised to {allowed:g}: GPUs are short, it serves for another pool",
    ReasonCode.GPUS_OCCUPIED: ("{wanted:g} cut to {allowed:g}: {free:g} GPUs are free for it now"),
    ReasonCode.REPLICAS_MIN: "{wanted:g} raised to replicas_min {allowed:g}",
    ReasonCode.REPLICAS_MAX: "{wanted:g} cut to replicas_max {allowed:g}",
    ReasonCode.GPU_BUDGET_MAX: "{wanted:g} cut to {allowed:g}: {gpus:g} GPUs would exceed gpu_budget_max {budget:g}",
    ReasonCode.GPU_BUDGET_MIN: (
        "{wanted:g} raised to {allowed:g}: {gpus:g} GPUs would be below gpu_budget_min {budget:g}"
    ),
    ReasonCode.GPU_BUDGET_GUARD_HOLD: (
        "{wanted:g} held at {allowed:g}: {gpus:g} GPUs stand, the budget allows no such step"
    ),
    ReasonCode.GPU_BUDGET_RECONCILE: "{wanted:g} set to {allowed:g}: {gpus:g} GPUs stood out of the budget or bounds",
    ReasonCode.GPU_BUDGET_GIVES_WAY: "{wanted:g} set to {allowed:g}: another model waits for GPUs",
    ReasonCode.FLEET_GPU_BUDGET_MAX: (
        "{wanted:g} cut to {allowed:g}: {gpus:g} GPUs of all models are taken or promised, fleet.gpu_budget_max is "
        "{budget:g}"
    ),
    ReasonCode.FLEET_GPU_BUDGET_MIN: (
        "{wanted:g} raised to {allowed:g}: {gpus:g} GPUs of all models are taken or promised, fleet.gpu_budget_min is "
        "{budget:g}"
    ),
    ReasonCode.NO_DATA_NO_SHRINK: "{wanted:g} held at {allowed:g}: {fresh:g} of {ready:g} workers report",
    ReasonCode.STEP_UP: "{wanted:g} cut to {allowed:g}: the largest step up",
    ReasonCode.STEP_DOWN: "{wanted:g} raised to {allowed:g}: the largest step down",
    ReasonCode.STABILISATION: "{wanted:g} held at {allowed:g}: the highest proposal of the last {window_ms:g} ms",
    ReasonCode.WARM_UP: (
        "{wanted:g} held at {allowed:g}: full data for {age_ms:g} ms, {needed_ms:g} ms are needed before a shrink"
    ),
    ReasonCode.COOLDOWN: (
        "{wanted:g} held at {allowed:g}: the last change was {age_ms:g} ms ago, cooldown is {cooldown_ms:g} ms"
    ),
    ReasonCode.PENDING_UNREACHED: "{missing:g} workers asked for did not come in time",
    ReasonCode.IDLE: "{wanted:g} cut to {allowed:g}: for {idle_ms:g} ms nobody has asked anything of the model",
    ReasonCode.LAST_WORKER: (
        "{wanted:g} raised to {allowed:g}: the last worker of a role stays while the model is awake"
    ),
    ReasonCode.SCHEDULE_FLOOR: "{wanted:g} raised to {allowed:g}: a schedule asks for it, for {left_ms:g} ms more",
    ReasonCode.NOT_LEADER: "this agent does not lead, or is about to lose its lease",
    ReasonCode.NOT_SETTLED: "the registry or the decisions have not been read yet",
    ReasonCode.PAUSED: "the model is paused",
    ReasonCode.BUS_DOWN: "the bus is away",
    ReasonCode.DECISION_IN_FLIGHT: "a decision is being committed",
    ReasonCode.RETRY_BACKOFF: "the last decision was not applied, the next may be in {left_ms:g} ms",
    ReasonCode.ADVISE_ONLY: "no_operation is set: this is what would be done",
    ReasonCode.STOPPING: "the agent is stopping",
}
"""One sentence for each code, filled from the numbers of the reason."""


class Rejection(StrEnum):
    """Why something from outside was refused. Append only, like ``ReasonCode``."""

    # by the codec, before anything is believed
    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    INVALID = "invalid"
    TOO_DEEP = "too_deep"
    SUBJECT_UNKNOWN = "subject_unknown"
    SUBJECT_MISMATCH = "subject_mismatch"
    # by the fleet, against what is believed
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


class Reason(Struct, frozen=True, omit_defaults=True):
    """A code, the pool that it is about (empty: the model), the numbers that led to it, and what numbers cannot say."""

    code: ReasonCode
    pool: str = ""
    numbers: dict[str, float] = {}
    detail: str = ""

    @classmethod
    def of(cls, code: ReasonCode, pool: str = "", **numbers: float) -> "Reason":
        """A reason whose numbers are floats, so that it survives a round trip through the journal unchanged."""
        return cls(code, pool, {name: float(value) for name, value in numbers.items()})

    def sentence(self) -> str:
        """For a person: the pool and the filled sentence."""
        text = SENTENCES[self.code].format(**self.numbers)
        text = f"{text}: {self.detail}" if self.detail else text
        return f"{self.pool}: {text}" if self.pool else text


class RoleDemand(Struct, frozen=True):
    """What is demanded of the pools of one role together, and how much of it a worker of each can serve."""

    role: Role
    demand: float
    """In any unit, such as requests a second; 0: nothing."""
    capacities: dict[str, float]
    """By pool, in the same unit; a pool that cannot meet the objectives is not in it."""


class Recommendation(Struct, frozen=True):
    """What one planner thinks: targets by pool, or none to hold. Always with reasons."""

    planner: str
    targets: dict[str, int]
    reasons: tuple[Reason, ...]
    inputs: dict[str, float]
    demands: tuple[RoleDemand, ...] = ()
    """By role, of a planner that knows what one pool can do in the place of another."""


class Explanation(Struct, frozen=True):
    """How a decision, or a hold, came about: what was seen, what was proposed, which rails bit, what came out."""

    model: str
    at_ms: int
    outcome: str  # decided | advised | held
    decision_id: str
    current: dict[str, int]
    recommendations: tuple[Recommendation, ...]
    limits: tuple[Reason, ...]
    targets: dict[str, int]
