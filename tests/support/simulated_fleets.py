"""Small simulated fleets whose engine times are easy to compute by hand."""

from collections.abc import Sequence

from msgspec.structs import replace

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.fleet import FleetMigrationKnobs, SimulatedFleetKnobs, SimulatedPoolKnobs, StartDelayKnobs
from loadline.sim.profiles import LinearProfile
from loadline.traces import Arrival, Trace

LINEAR = LinearProfile(alpha=10.0, beta=0.1, gamma=5.0, delta=0.05)
"""Iterations of 10 ms plus 0.1 ms per request; prompts of 5 ms plus 50 us per token."""
GUARD = GuardrailKnobs(stabilisation_ms=20_000, warm_up_ms=20_000)
THRESHOLD = ThresholdKnobs(adjustment_interval_ms=10_000)


def pool_fleet(name: str, workers: int = 1, **changed: object) -> SimulatedPoolKnobs:
    """Return a pool of linear engines whose workers take 20 s to start."""
    given: dict[str, object] = {
        "kv_blocks": 1_000,
        "max_batch_requests": 32,
        "linear": LINEAR,
        "start_delay": StartDelayKnobs("constant", 20.0),
    }
    return SimulatedPoolKnobs(name=name, workers=workers, **(given | changed))  # type: ignore[arg-type]


def aggregated(
    workers: int = 1, replicas_max: int = 4, fleet: dict[str, object] | None = None, **pool: object
) -> tuple[Settings, SimulatedFleetKnobs]:
    """Return a model with one aggregated pool, and its fleet."""
    model = ModelKnobs(
        "m",
        (PoolKnobs("both", "aggregated", replicas_max=replicas_max),),
        planner="threshold",
        guardrails=GUARD,
        planner_knobs={"threshold": THRESHOLD},
    )
    pools = (pool_fleet("both", workers, **pool),)
    return Settings("agent", "all", (model,)), SimulatedFleetKnobs(pools, **(fleet or {}))  # type: ignore[arg-type]


def disaggregated(
    workers: int = 1, fleet: dict[str, object] | None = None, **pool: object
) -> tuple[Settings, SimulatedFleetKnobs]:
    """Return a model with a prefill and a decode pool, and its fleet."""
    pools = (PoolKnobs("p", "prefill", replicas_max=4), PoolKnobs("d", "decode", replicas_max=4))
    model = ModelKnobs("m", pools, planner="threshold", guardrails=GUARD, planner_knobs={"threshold": THRESHOLD})
    described = (pool_fleet("p", workers, **pool), pool_fleet("d", workers, **pool))
    return Settings("agent", "all", (model,)), SimulatedFleetKnobs(described, **(fleet or {}))  # type: ignore[arg-type]


def with_migration(setup: tuple[Settings, SimulatedFleetKnobs]) -> tuple[Settings, SimulatedFleetKnobs]:
    """Return the same setup with migration of the requests of draining workers."""
    settings, fleet = setup
    knobs = MigrationKnobs(enabled=True, policies=())
    models = tuple(replace(model, migration=knobs) for model in settings.models)
    return replace(settings, models=models), replace(fleet, migration=FleetMigrationKnobs())


def steady(count: int, every_s: float, isl: int = 200, osl: int = 100) -> Trace:
    """Return a trace of equal requests at equal intervals."""
    return trace([Arrival(index * every_s, isl, osl) for index in range(count)])


def trace(arrivals: Sequence[Arrival]) -> Trace:
    """Return a trace of these arrivals."""
    return Trace("test", list(arrivals), arrivals[-1].arrival_s + 1.0)
