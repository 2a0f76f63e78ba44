"""Result of a simulation: totals, time series and decisions. Encoded, it is the JSON result."""

from msgspec import Struct

FLAP_MS = 300_000.0
"""A change of a pool in the other direction within this time is a flap."""


class Percentiles(Struct, frozen=True):
    """Percentiles over finished requests, in ms; None without any. A single token has no ITL."""

    p50: float | None
    p95: float | None
    p99: float | None


class MigrationTotals(Struct, frozen=True):
    """Totals of the migrations that the agent planned."""

    commands: int = 0
    """Migrate commands."""
    refused: int = 0
    """Commands that the source refused."""
    aborted: int = 0
    """Commands that were started and migrated nothing."""
    requests: int = 0
    """Migrated requests."""
    kv_tokens: int = 0
    """KV tokens that migrated with them."""


class Attainment(Struct, frozen=True):
    """Fraction (0..1) of all requests that met an objective; unfinished ones met none."""

    ttft: float
    itl: float
    both: float


class PoolSeries(Struct, frozen=True):
    """Series of one pool, with one value for each of ``TimeSeries.at_s``."""

    pool: str
    role: str
    desired: list[int]
    """Decided workers."""
    ready: list[int]
    """Serving workers."""
    starting: list[int]
    draining: list[int]
    waiting_requests: list[int]
    running_requests: list[int]
    kv_usage_ratio: list[float]
    """Mean over the serving workers."""


class TimeSeries(Struct, frozen=True):
    """Measures over time, in s from the start of the trace."""

    step_s: float
    at_s: list[float]
    arrivals_per_s: list[float]
    prompt_tokens_per_s: list[float]
    queued_requests: list[int]
    """Requests without a worker."""
    ttft_p50_ms: list[float | None]
    """Median TTFT of the arrivals in the step; None without arrivals."""
    ttft_p95_ms: list[float | None]
    itl_p50_ms: list[float | None]
    itl_p95_ms: list[float | None]
    pools: list[PoolSeries]


class ScalingAction(Struct, frozen=True):
    """A decision that changed the count of a pool."""

    decision_id: str
    at_s: float
    pool: str
    before: int
    after: int
    reasons: list[str]
    """Sentences of the decision's reasons, the strongest first."""
    flap: bool


class SimulationResult(Struct, frozen=True):
    """Result of one run."""

    name: str
    """Name of the configuration."""
    trace: str
    seed: int
    model: str
    planner: str
    ttft_objective_ms: float
    itl_objective_ms: float
    duration_s: float
    """Length of the trace; GPU-hours, decisions, actions and drains count within it."""
    requests: int
    finished: int
    refused: int
    """Requests too long for any worker's cache."""
    unfinished: int
    """Requests still in flight after the extra time at the end."""
    retried: int
    """Restarts of requests after the loss of a worker."""
    preempted: int
    migrated: int
    """Migrations of requests."""
    attainment: Attainment
    ttft_ms: Percentiles
    itl_ms: Percentiles
    gpu_hours: float
    gpu_hours_by_pool: dict[str, float]
    workers_max: dict[str, int]
    """Most workers at once, by pool."""
    decisions: int
    scaling_actions: int
    flaps: int
    drains: int
    drops: int
    """Lost requests; anything but 0 is a bug."""
    actions: list[ScalingAction]
    series: TimeSeries
    digest: str
    """Hash of the times of all requests and of all decisions; equal for equal inputs and seed."""
    token_gap_max_ms: Percentiles = Percentiles(None, None, None)
    """Percentiles of the longest time between two tokens of a request."""
    migrations: MigrationTotals = MigrationTotals()
    wall_s: float = 0.0
    """Duration of the simulation in real time, if measured; not part of the digest."""
