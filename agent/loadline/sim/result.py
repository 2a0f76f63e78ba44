"""What came of a simulation: the numbers, the lines over time and the decisions. Encoded, it is the JSON result."""

from msgspec import Struct

FLAP_MS = 300_000.0
"""A change of a pool in the other direction within so long of the one before is a flap."""


class Percentiles(Struct, frozen=True):
    """Of the requests that finished, in ms; None where there were none. A single token has no ITL."""

    p50: float | None
    p95: float | None
    p99: float | None


class MigrationTotals(Struct, frozen=True):
    """What became of the moves of requests that the agent planned."""

    commands: int = 0
    """Migrate commands."""
    refused: int = 0
    """Of these, by the source."""
    aborted: int = 0
    """Of these, begun, and nothing was moved."""
    requests: int = 0
    """That were moved."""
    kv_tokens: int = 0
    """Of KV cache that were moved with them."""


class Attainment(Struct, frozen=True):
    """Share (0..1) of all requests that met an objective. One that did not finish met none."""

    ttft: float
    itl: float
    both: float


class PoolSeries(Struct, frozen=True):
    """One pool over time; one value for each of ``Lines.at_s``."""

    pool: str
    role: str
    desired: list[int]
    """Workers decided on."""
    ready: list[int]
    """Workers that serve."""
    starting: list[int]
    draining: list[int]
    waiting_requests: list[int]
    running_requests: list[int]
    kv_usage_ratio: list[float]
    """Mean over the workers that serve."""


class TimeSeries(Struct, frozen=True):
    """What happened over time. Times are s from the start of the trace."""

    step_s: float
    at_s: list[float]
    arrivals_per_s: list[float]
    prompt_tokens_per_s: list[float]
    queued_requests: list[int]
    """Requests that no worker could take."""
    ttft_p50_ms: list[float | None]
    """Of the requests that arrived in the step; None where none did."""
    ttft_p95_ms: list[float | None]
    itl_p50_ms: list[float | None]
    itl_p95_ms: list[float | None]
    pools: list[PoolSeries]


class ScalingAction(Struct, frozen=True):
    """A decision that changed a count."""

    decision_id: str
    at_s: float
    pool: str
    before: int
    after: int
    reasons: list[str]
    """Sentences, the strongest first."""
    flap: bool


class SimulationResult(Struct, frozen=True):
    """All of it."""

    name: str
    """Of the configuration."""
    trace: str
    seed: int
    model: str
    planner: str
    ttft_objective_ms: float
    itl_objective_ms: float
    duration_s: float
    """Of the trace: GPU-hours, decisions, actions and drains are counted within it."""
    requests: int
    finished: int
    refused: int
    """Too long for any worker's cache."""
    unfinished: int
    """Still under way at the end of the time that was given for the last ones."""
    retried: int
    """Starts from the beginning after a worker was lost."""
    preempted: int
    migrated: int
    """Times that a request was moved."""
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
    """Requests that were lost for good: always 0 unless there is a bug."""
    actions: list[ScalingAction]
    series: TimeSeries
    digest: str
    """Hash of every request's times and every decision: the same seed gives the same digest."""
    token_gap_max_ms: Percentiles = Percentiles(None, None, None)
    """Of the longest time between two tokens of each request."""
    migrations: MigrationTotals = MigrationTotals()
    wall_s: float = 0.0
    """How long the simulation took, where whoever ran it measured that; not part of the digest."""
