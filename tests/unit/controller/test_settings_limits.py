"""Changed settings of limits over all models, while a model waits for GPUs."""

import msgspec
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import SettingsChanged, WorkerDeregistered
from tests.support.multi_model_world import GpuLimits, MultiModelWorld

MAIN = PoolKnobs("main", "aggregated", replicas_max=100, accelerator="h100")
MINUTE_MS = 60_000


def scarce(gpus: int = 10) -> MultiModelWorld:
    """Return model ``a``, which requests 8 workers, and ``b`` with 4, sharing ``gpus`` GPUs, one per worker."""
    limited = GpuLimits(AllocationKnobs({"h100": gpus}, solver="greedy"), (AcceleratorKnobs("h100"),))
    models = MultiModelWorld({"a": [(MAIN, 3)], "b": [(MAIN, 4)]}, FleetKnobs(), limited=limited)
    settings = models.controller.settings
    requested = {"a": StaticKnobs({"main": 8, "more": 1}), "b": StaticKnobs({"main": 4})}
    change(
        models,
        replace(
            settings,
            models=tuple(replace(one, planner_knobs={"static": requested[one.name]}) for one in settings.models),
        ),
    )
    models.run(MINUTE_MS)
    return models


def change(models: MultiModelWorld, settings: Settings) -> None:
    """Apply settings, and stop the workers of removed models and pools."""
    models.schedule(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings))))
    pools = {(model.name, pool.name) for model in settings.models for pool in model.pools}
    for one in [one for one in models.workers.values() if (one.model, one.pool) not in pools]:
        models.schedule(WorkerDeregistered(one.model, one.pool, one.worker))


def main(models: MultiModelWorld) -> dict[str, int]:
    return {name: pools["main"] for name, pools in models.effective_targets().items()}


def test_a_removed_model_releases_its_gpus() -> None:
    models = scarce()
    assert main(models) == {"a": 6, "b": 4}
    original = models.controller.settings
    change(models, replace(original, models=original.models[:1]))
    models.run(MINUTE_MS)
    assert main(models) == {"a": 8}
    change(models, original)
    models.run(MINUTE_MS)
    assert sum(main(models).values()) == 10


def test_a_model_that_waits_for_gpus_can_be_removed() -> None:
    models = scarce()
    original = models.controller.settings
    change(models, replace(original, models=original.models[1:]))
    models.run(MINUTE_MS)
    assert main(models) == {"b": 4}


def test_changed_limits_apply_at_once() -> None:
    models = scarce()
    knobs = replace(models.controller.settings.allocation, capacity={"h100": 11})
    change(models, replace(models.controller.settings, allocation=knobs))
    models.run(MINUTE_MS)
    assert main(models) == {"a": 7, "b": 4}
    change(models, replace(models.controller.settings, allocation=AllocationKnobs()))
    models.run(MINUTE_MS)
    assert main(models) == {"a": 8, "b": 4}


def test_a_model_that_waits_for_gpus_can_get_another_pool() -> None:
    models = scarce()
    a, b = models.controller.settings.models
    more = replace(a, pools=(MAIN, replace(MAIN, name="more")))
    change(models, replace(models.controller.settings, models=(more, b)))
    models.run(MINUTE_MS)
    assert sum(sum(pools.values()) for pools in models.effective_targets().values()) == 10
    change(models, replace(models.controller.settings, models=(a, b)))
    models.run(MINUTE_MS)
    assert main(models) == {"a": 6, "b": 4}


def test_the_budget_over_all_models_drops_claims_of_removed_models() -> None:
    models = MultiModelWorld({"a": [(MAIN, 3)], "b": [(MAIN, 4)]}, FleetKnobs(gpu_budget_max=10))
    models.propose("a", main=8)
    models.run(MINUTE_MS)
    assert main(models) == {"a": 6, "b": 4}
    original = models.controller.settings
    change(models, replace(original, models=original.models[1:]))
    models.run(MINUTE_MS)
    assert main(models) == {"b": 4}
    assert not models.controller.state.gpus.claims
