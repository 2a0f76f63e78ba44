"""Settings of the model ``night`` of the chaos world: sized for its traffic, scaled to zero, and scheduled.

Its engines have sidecars, its frontends report, and its planner forecasts. Its requests are simulated in aggregate. It
uses GPUs of its own, so that no other model keeps it from its schedule.
"""

from typing import Final

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import MINUTE_MS, ScheduleKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.forecasts import ForecastKnobs

NIGHT: Final = "night"
NIGHT_POOL: Final = "both"
SCHEDULED_REPLICAS: Final = 2
"""Minimum replicas in the first five of each ten minutes."""
FORECAST_INTERVAL_MS: Final = 30_000
IDLE_MS: Final = 30_000
"""Time without requests after which the model scales to zero."""
REQUESTS_PER_S: Final = 0.9
"""Requests per second that fill one worker; its profile allows slightly more."""
ISL_TOKENS: Final = 1_000
OSL_TOKENS: Final = 200
_PERIOD_MIN: Final = 10
_WINDOW_MIN: Final = 5
_SCHEDULE: Final = ScheduleKnobs(
    start=f"*/{_PERIOD_MIN} * * * *", end=f"{_WINDOW_MIN}-59/{_PERIOD_MIN} * * * *", replicas_min=SCHEDULED_REPLICAS
)
NIGHT_PROFILE: Final = EngineProfile(
    linear=LinearKnobs(alpha=10.0, beta=2.0, gamma=10.0, delta=0.2, max_kv_tokens=64_000.0)
)


def scheduled_replicas(now: int) -> int:
    """Return the minimum replicas of the pool at ``now`` (Unix ms); calculated without the production code."""
    return SCHEDULED_REPLICAS if now // MINUTE_MS % _PERIOD_MIN < _WINDOW_MIN else 0


def schedule_changes(begin: int, end: int) -> bool:
    """Return True if a scheduled window begins or ends between two times (Unix ms)."""
    window_ms = _WINDOW_MIN * MINUTE_MS
    return begin // window_ms != end // window_ms


def night_model(guardrails: GuardrailKnobs) -> ModelKnobs:
    """Return the model."""
    pool = PoolKnobs(NIGHT_POOL, "aggregated", 1, 0, 4, start_deadline_ms=30_000, schedules=(_SCHEDULE,))
    forecast = ForecastKnobs("constant")
    knobs = ThroughputKnobs(
        throughput_adjustment_interval_ms=FORECAST_INTERVAL_MS, start_up_ms=10_000, forecast=forecast
    )
    return ModelKnobs(
        NIGHT,
        (pool,),
        planner="throughput",
        scale_to_zero_after_ms=IDLE_MS,
        guardrails=guardrails,
        planner_knobs={"throughput": knobs},
    )
