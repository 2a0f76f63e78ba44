"""Status of an agent: its workers, pools, models and decisions."""

from collections.abc import Iterable

from msgspec import Struct

from loadline.core.vocabulary.conditions import Condition
from loadline.core.vocabulary.scalars import Role


class DecisionSummary(Struct, frozen=True):
    """A decision and its state."""

    decision_id: str
    model: str
    epoch: int
    sequence: int
    issued_at_ms: int
    state: str
    targets: dict[str, int]
    reasons: tuple[str, ...]
    detail: str = ""
    """Last statement of its scaler, such as the reason why it waits or was refused."""


class WorkerStatus(Struct, frozen=True):
    """State of one worker."""

    worker: str
    state: str
    age_ms: int | None
    kv_usage_ratio: float
    waiting_requests: int
    running_requests: int
    kv_reported: bool = True
    """False: the worker does not report its KV usage, and ``kv_usage_ratio`` is 0."""


class PoolStatus(Struct, frozen=True):
    """State of one pool."""

    pool: str
    role: Role
    desired: int
    ready: int
    starting: int
    pending: int
    draining: int
    fresh: int
    kv_usage_ratio: float
    waiting_requests: int
    running_requests: int
    workers: tuple[WorkerStatus, ...]
    expected_ready_at_ms: int | None = None
    """Time at which the last pending worker should be ready, by past startup times, in Unix ms; None: unknown."""
    schedule_replicas_min: int = 0
    """Minimum replicas of the active schedule; 0: none is active."""
    schedule_ends_at_ms: int | None = None
    """End of the active schedule, in Unix ms."""
    decided: bool = False
    """True if a decision set ``desired``; otherwise it is the number of existing workers."""
    undecided_max: int = 0
    """Most workers that existed at once before the first decision."""
    start_up_ms: int | None = None
    """Startup time of workers, the longest of the latest few, in ms; None before the first."""
    accelerator_type: str = ""
    cost_per_hour: float | None = None
    """Cost of all workers per hour, draining ones included; None: the pool names no accelerator."""
    power_w: float | None = None
    """Power draw of all workers under load, in W; None: not configured."""
    changes: dict[str, int] = {}
    """Number of committed changes of ``desired`` by direction and first reason, such as ``up:kv_usage_high``."""
    moved: int = 0
    """Workers of other pools that serve in this one, minus those of this one that serve in others."""
    recommended: int | None = None
    """Workers that the planner recommends, before all limits; None: it recommends no change of ``desired``."""
    kv_reporting: int | None = None
    """Workers that report their KV usage, of which ``kv_usage_ratio`` is the mean; None: the agent is older, and means
    all that are ``fresh``."""

    @property
    def kv_weight(self) -> int:
        """Number of workers that ``kv_usage_ratio`` is the mean of."""
        return self.fresh if self.kv_reporting is None else self.kv_reporting

    @property
    def kv_usage(self) -> float | None:
        """Mean KV usage, 0 to 1; 0 without workers; None: it is unknown, as none of them reports it."""
        return None if self.ready and not self.kv_weight else self.kv_usage_ratio

    @property
    def silent(self) -> bool:
        """True if workers are ready and none reports: its load is unknown, and not 0."""
        return self.ready > 0 and not self.fresh


def mean_kv_usage(pools: Iterable[PoolStatus]) -> float | None:
    """Return the mean KV usage of the workers of several pools, 0 to 1; None: it is unknown."""
    weights = [(pool.kv_weight, pool.kv_usage_ratio) for pool in pools]
    workers = sum(weight for weight, _ in weights)
    return sum(weight * ratio for weight, ratio in weights) / workers if workers else None


class Total(Struct, frozen=True):
    """Number of values and their sum."""

    count: int = 0
    sum: float = 0.0


class TrafficCounts(Struct, frozen=True):
    """Traffic of a model since this agent started."""

    arrivals: int = 0
    completed: int = 0
    isl_tokens: Total = Total()
    osl_tokens: Total = Total()
    ttft_ms: Total = Total()
    itl_ms: Total = Total()
    ttft_attainment: Total = Total()
    """Completed requests that frontends compared with the TTFT objective; the sum is those within it."""
    itl_attainment: Total = Total()
    """The same for the ITL objective."""
    both_attainment: Total = Total()
    """The same for both objectives together."""


class TrafficStatus(Struct, frozen=True):
    """Traffic of a model over the rolling window; None: unknown."""

    requests_per_s: float | None
    isl_tokens: float | None
    osl_tokens: float | None
    ttft_ms: float | None
    itl_ms: float | None
    queued: int
    in_flight: int = 0
    """Requests dispatched to workers and not completed."""
    frontends: int = 0
    """Number of frontends that report."""
    ttft_attainment: float | None = None
    """Fraction of the completed requests within the TTFT objective; None: frontends do not report it."""
    itl_attainment: float | None = None
    """Fraction of the completed requests within the ITL objective; None: frontends do not report it."""
    both_attainment: float | None = None
    """Fraction of the completed requests within both objectives; None: frontends do not report it."""
    totals: TrafficCounts = TrafficCounts()


class ForecastStatus(Struct, frozen=True):
    """Forecast of the arrivals of a model, and an earlier one next to what came."""

    requests_per_s: float
    """Rate expected when a worker requested now is ready."""
    lead_ms: int
    """Time until then."""
    due_requests_per_s: float | None = None
    """Rate that was forecast for the time that ended last; None before the first."""
    observed_requests_per_s: float | None = None
    """Rate that was observed in that time."""
    observed_requests: float = 0.0
    """Requests that were observed in all times with a forecast."""
    error_requests: float = 0.0
    """Sum of the absolute differences of the requests that were forecast and observed."""


class PoolEstimate(Struct, frozen=True):
    """Estimates of the workers of a pool; None: unknown."""

    serves_per_s: float | None = None
    """Requests per second that a worker serves within the objectives."""
    ttft_ms: float | None = None
    """Mean TTFT of the expected load with the ready workers, by the queueing model."""
    itl_ms: float | None = None
    """Mean ITL of the expected load with the ready workers, by the queueing model."""
    utilisation_ratio: float | None = None
    """Expected load divided by what the ready workers serve at all, by the queueing model."""


class Estimates(Struct, frozen=True):
    """Expectations of a planner, and what it has learned of the engines."""

    forecast: ForecastStatus | None = None
    corrections: dict[str, float] = {}
    """Observed latencies divided by the profiled ones, by role."""
    pools: dict[str, PoolEstimate] = {}


class DurationTotal(Struct, frozen=True):
    """Number of completed operations and their total duration."""

    count: int = 0
    total_ms: int = 0

    @property
    def mean_ms(self) -> float:
        """Mean duration; 0 before the first."""
        return self.total_ms / self.count if self.count else 0.0


class InFlightStatus(Struct, frozen=True):
    """A migration in flight."""

    command_id: str
    source: str
    destination: str
    policy: str
    phase: str
    """``asked``, ``unknown`` (no reply), ``accepted``, ``admitted``, ``copying`` or ``switched``."""
    age_ms: int
    """Time since the command was sent."""
    requests: int
    """Requests expected to migrate; after acceptance, the selected ones."""
    moved: int
    """Requests that the destination has taken over."""


class RecentMigration(Struct, frozen=True):
    """A migration that has ended and moved requests."""

    source: str
    destination: str
    policy: str
    requests: int
    """Requests that the destination has taken over."""
    ended_at_ms: int


class MigrationStatus(Struct, frozen=True):
    """Migrations of a model: those in flight, and totals since this agent became leader."""

    in_flight: int
    in_flight_commands: tuple[InFlightStatus, ...]
    """Commands in flight, oldest first; at most 64."""
    commands: dict[str, int]
    """Number of commands by policy, outcome and reason, such as ``decode_load:refused:no_slots``. A command is
    ``planned``, then ``accepted``, ``refused`` or ``unanswered``, and finally ``done``, ``aborted`` or ``lost``."""
    requests: dict[str, int]
    """Migrated requests by policy."""
    tokens: dict[str, int]
    """Migrated KV tokens by policy."""
    phases: dict[str, DurationTotal]
    """Completed phases and their duration, by phase."""
    silent: int
    """Number of unresponsive workers that get no commands for now."""
    silent_workers: tuple[str, ...]
    """Names of unresponsive workers; at most 64."""
    recent: tuple[RecentMigration, ...] = ()
    """Migrations that moved requests in the last 5 min, oldest first; at most 64."""


class ModelStatus(Struct, frozen=True):
    """State of one model: pools, traffic, the last decision and the reasons of the current hold."""

    model: str
    planner: str
    paused: bool
    no_operation: bool
    pools: tuple[PoolStatus, ...]
    traffic: TrafficStatus
    decision: DecisionSummary | None
    hold: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Missing inputs of its planner."""
    namespace: str = "default"
    conditions: tuple[Condition, ...] = ()
    priority: int = 100
    service_class: str = ""
    objectives: dict[str, float] = {}
    """Objectives that its planner sizes for, by key, such as ``ttft_ms``."""
    settled: bool = False
    """True if this agent leads and has read the decisions; only then are the counts of the pools authoritative."""
    migrations: MigrationStatus | None = None
    """Migrations; None if migration is disabled."""
    emptied: DurationTotal = DurationTotal()
    """Completed drains and their duration."""
    estimates: Estimates = Estimates()
    hold_reasons: tuple[str, ...] = ()
    """Reasons of ``hold`` as pool and code, such as ``decode:cooldown``; the pool is empty for the whole model."""

    def replicas(self, pool: PoolStatus) -> int | None:
        """Return the count of a pool for other autoscalers to act on; None while this agent does not know it.

        It counts the workers that were started in the pool, wherever they serve, since others start and end them there.
        Before the first decision it is the most workers that have existed, so that a worker that fails is replaced. A 0
        would stop workers that have not registered yet, so it needs a decision.
        """
        if self.no_operation or not self.settled:
            return None
        return max(0, pool.desired - pool.moved) if pool.decided else pool.undecided_max or None

    epoch: int = 0
    """Epoch of the leader that reports the model; 0: an agent that does not lead it does."""


class GpuBudgetStatus(Struct, frozen=True):
    """GPU budget over all models."""

    gpu_budget_min: int
    gpu_budget_max: int | None
    decided: int
    """GPUs of the effective targets."""
    occupied: int
    """GPUs occupied or reserved, draining workers included."""
    waiting: dict[str, int]
    """GPUs that models wait for, in order of precedence."""
    offers: dict[str, int]
    """GPUs that models would release for another model."""


class SupplyStatus(Struct, frozen=True):
    """A limited supply of GPUs of one type, for all models or for a namespace."""

    supply: str
    """Name of the supply: the type, or ``namespace/type`` for a quota."""
    limit: int
    occupied: int
    """GPUs occupied or reserved, draining workers included."""
    waiting: dict[str, int]
    """GPUs that models wait for, by name."""


class RaisedAlarm(Struct, frozen=True):
    """The newest alarm of a kind and model."""

    kind: str
    model: str
    """Empty: the alarm is about the agent."""
    text: str
    at_ms: int
    count: int
    """Alarms of this kind and model in a row, each within an hour of the one before."""
    action: str = ""
    """Action of an operator."""


class SharingStatus(Struct, frozen=True):
    """Part of an agent in sharing the models out: its status has the models that it leads."""

    shards: int
    """Number of shards that have models."""
    led: tuple[int, ...]
    """Shards that this agent leads."""
    agents: tuple[str, ...]
    """Live agents, by name."""

    @property
    def led_ratio(self) -> float:
        """Fraction of the shards that this agent leads; the sum over all agents is 1."""
        return len(self.led) / self.shards if self.shards else 0.0

    @property
    def text(self) -> str:
        """Shards and live agents, as a phrase."""
        return f"leads {len(self.led)} of {self.shards} shards; live agents: {', '.join(self.agents) or 'none'}"


class AgentStatus(Struct, frozen=True):
    """State of an agent, its leadership and its models. Subject: ``<root>.v1.status.<agent>``."""

    agent: str
    version: str
    at_ms: int
    uptime_ms: int
    leading: bool
    epoch: int
    leader: str
    bus_connected: bool
    store_connected: bool
    models: tuple[ModelStatus, ...]
    rejected: dict[str, int]
    counters: dict[str, int]
    gpus: GpuBudgetStatus | None = None
    """GPU budget over all models; None: not configured."""
    config_digest: str = ""
    """Digest of the active configuration; agents of one deployment should have the same."""
    config_problem: str = ""
    """Reason why the last loaded configuration is not active; empty: it is."""
    restart_for: tuple[str, ...] = ()
    """Changed configuration keys that take effect after a restart."""
    supplies: tuple[SupplyStatus, ...] = ()
    """Limited supplies, by name."""
    alarms: tuple[RaisedAlarm, ...] = ()
    """Alarms of the last hour, newest first; at most 32."""
    part: int = 0
    """Number of this part; a status of many models is split into parts."""
    parts: int = 1
    """Number of parts. The first one holds everything that is not about a single model."""
    sharing: SharingStatus | None = None
    """Sharing of the models out to agents; None: one agent leads all."""
