"""What an agent says of itself: its workers, pools, models and decisions."""

from typing import Literal

from msgspec import Struct

from loadline.core.vocabulary.scalars import Role

ConditionName = Literal["MetricsAvailable", "OptimizationReady"]
ConditionReason = Literal[
    "MetricsFound",
    "MetricsMissing",
    "MetricsStale",
    "OptimizationSucceeded",
    "OptimizationFailed",
    "MetricsUnavailable",
    "InvalidConfiguration",
    "SkippedProcessing",
    "ResourceConstrained",
    "CapacitySafetyOverride",
    "CapacityOnlyMode",
]


class Condition(Struct, frozen=True):
    """A yes or a no about a model, and why, in words that programs match on and in a sentence for people."""

    name: ConditionName
    status: bool
    reason: ConditionReason
    message: str
    """What it is, and what to do about it."""
    since_ms: int
    """Since when the status is what it is, in Unix ms."""


class DecisionSummary(Struct, frozen=True):
    """A decision and how far it got."""

    decision_id: str
    model: str
    epoch: int
    sequence: int
    issued_at_ms: int
    state: str
    targets: dict[str, int]
    reasons: tuple[str, ...]


class WorkerStatus(Struct, frozen=True):
    """One worker as the agent believes it to be."""

    worker: str
    state: str
    age_ms: int | None
    kv_usage_ratio: float
    waiting_requests: int
    running_requests: int


class PoolStatus(Struct, frozen=True):
    """One pool as the agent believes it to be."""

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
    """When the last of the pending workers should be ready, by how long those before took; None is unknown."""
    schedule_replicas_min: int = 0
    """Workers that a schedule asks for at the moment; 0: none does."""
    schedule_ends_at_ms: int | None = None
    """When its window ends."""
    decided: bool = False
    """Whether ``desired`` was decided; else it is what there is."""
    start_up_ms: int | None = None
    """How long workers take to come: the longest of the last few times; None before the first."""
    accelerator_type: str = ""
    cost_per_hour: float | None = None
    """What the workers that there are cost, those that drain too; None: the pool names no accelerator."""
    power_w: float | None = None
    """What they draw under load, in W; None: it is not configured."""
    changes: dict[str, int] = {}
    """Committed changes of ``desired`` by direction and first reason, such as ``up:kv_usage_high``."""


class TrafficStatus(Struct, frozen=True):
    """A model's traffic over the rolling window; None is unknown."""

    requests_per_s: float | None
    isl_tokens: float | None
    osl_tokens: float | None
    ttft_ms: float | None
    itl_ms: float | None
    queued: int


class DurationTotal(Struct, frozen=True):
    """How often something was done, and how long that took together."""

    count: int = 0
    total_ms: int = 0

    @property
    def mean_ms(self) -> float:
        """How long it takes; 0 before the first time."""
        return self.total_ms / self.count if self.count else 0.0


class InFlightStatus(Struct, frozen=True):
    """A move of requests that is in flight."""

    command_id: str
    source: str
    destination: str
    policy: str
    phase: str
    """``asked``, ``unknown`` (not answered), ``accepted``, ``admitted``, ``copying`` or ``switched``."""
    age_ms: int
    """Since it was asked for."""
    requests: int
    """That are thought to move; once it is accepted, those that were chosen."""
    moved: int
    """Of these, the destination has them now."""


class MigrationStatus(Struct, frozen=True):
    """The requests of a model that move from worker to worker, and those that did since this agent leads."""

    in_flight: int
    in_flight_commands: tuple[InFlightStatus, ...]
    """Those in flight, the oldest first; no more than 64."""
    commands: dict[str, int]
    """By policy, outcome and reason, such as ``decode_load:refused:no_slots``. A command is ``planned``, then
    ``accepted``, ``refused`` or ``unanswered``, and at last ``done``, ``aborted`` or ``lost``."""
    requests: dict[str, int]
    """That were moved, by policy."""
    tokens: dict[str, int]
    """Of KV cache that were moved, by policy."""
    phases: dict[str, DurationTotal]
    """How long moves were in each phase that they left."""
    silent: int
    """Workers that did not answer a command and are not asked for a while."""
    silent_workers: tuple[str, ...]
    """Their names; no more than 64."""


class ModelStatus(Struct, frozen=True):
    """One model: its pools, its traffic, what was last decided and why nothing is decided now."""

    model: str
    planner: str
    paused: bool
    no_operation: bool
    pools: tuple[PoolStatus, ...]
    traffic: TrafficStatus
    decision: DecisionSummary | None
    hold: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """What its planner needs and has not got."""
    namespace: str = "default"
    conditions: tuple[Condition, ...] = ()
    priority: int = 100
    service_class: str = ""
    objectives: dict[str, float] = {}
    """By key, such as ``ttft_ms``: those that its planner sizes for."""
    settled: bool = False
    """Whether this agent leads and knows what stands: only then may anybody act on the counts of its pools."""
    migrations: MigrationStatus | None = None
    """None where migration is off."""
    emptied: DurationTotal = DurationTotal()
    """Workers that were drained, and how long that took from when they were to drain."""


class GpuBudgetStatus(Struct, frozen=True):
    """The GPUs of all models under one budget."""

    gpu_budget_min: int
    gpu_budget_max: int | None
    decided: int
    """By the counts that stand."""
    occupied: int
    """Taken or promised, by workers that drain too."""
    waiting: dict[str, int]
    """What models wait for, the first first."""
    offers: dict[str, int]
    """What models would give if another one needed it."""


class SupplyStatus(Struct, frozen=True):
    """GPUs of one type, of all models or of a namespace, of which there are only so many."""

    supply: str
    """The type, or ``namespace/type`` for what a quota leaves."""
    limit: int
    occupied: int
    """Taken or promised, by workers that drain too."""
    waiting: dict[str, int]
    """What models would add, by name."""


class AgentStatus(Struct, frozen=True):
    """An agent, its leadership and its models. Subject: ``<root>.v1.status.<agent>``."""

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
    """None where there is no budget over all models."""
    config_digest: str = ""
    """Of what it obeys: agents that are to take over from each other have the same."""
    config_problem: str = ""
    """Why the configuration, as it was last read, is not obeyed; empty: it is."""
    restart_for: tuple[str, ...] = ()
    """Keys of the configuration that were changed and are obeyed after a restart."""
    supplies: tuple[SupplyStatus, ...] = ()
    """What is limited by type, by name."""
    part: int = 0
    """Which part of the status this is: of many models it comes in several, each with some of them."""
    parts: int = 1
    """How many there are. What is said of all models together, and what is counted, is in the first."""
