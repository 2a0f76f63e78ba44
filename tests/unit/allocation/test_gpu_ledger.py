"""GPU ledger: GPUs of all workers, including those of removed pools and models."""

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.planning.allocation.fleet_allocation import GpuWait
from loadline.core.planning.allocation.gpu_ledger import GpuLedger, gpu_ledger_of
from loadline.core.state.agent_state import limited_supplies
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.events import RegistryRead, SettingsChanged, WorkerDeregistered, WorkerRegistered
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from tests.support.fleet_harness import START
from tests.support.multi_model_world import MultiModelWorld
from tests.unit.allocation.test_fleet_allocation import models_of, pool, supplies

SECOND_MS = 1_000


def four_each() -> MultiModelWorld:
    """Return two models that occupy all of eight GPUs."""
    return models_of({"h100": 8}, {"a": [(pool("old", width=2), 2)], "b": 4})


def change(models: MultiModelWorld, *knobs: ModelKnobs) -> None:
    settings = replace(models.controller.settings, models=knobs)
    models.schedule(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings))))
    models.run(SECOND_MS)


def rename(models: MultiModelWorld) -> None:
    """Rename pool old of model a to new."""
    first, second = models.controller.settings.models
    change(models, replace(first, pools=(pool("new", width=2, least=0),)), second)


def occupied(models: MultiModelWorld) -> int:
    return supplies(models)["h100"].occupied


def leave(models: MultiModelWorld, model: str) -> None:
    """Remove all workers of a model."""
    for record in [one for one in models.workers.values() if one.model == model]:
        models.schedule(WorkerDeregistered(record.model, record.pool, record.worker))
    models.run(SECOND_MS)


def test_workers_of_a_removed_pool_occupy_gpus_until_they_leave() -> None:
    models = four_each()
    rename(models)
    assert occupied(models) == 8
    models.propose("a", new=2)
    models.run(10 * SECOND_MS)
    assert models.effective_targets()["a"] == {"new": 0}
    leave(models, "a")
    models.run(10 * SECOND_MS)
    assert (models.effective_targets()["a"], occupied(models)) == ({"new": 2}, 8)


def test_workers_of_a_removed_model_occupy_gpus_until_they_leave() -> None:
    models = four_each()
    change(models, models.controller.settings.models[1])
    assert occupied(models) == 8
    leave(models, "a")
    assert occupied(models) == 4


@pytest.mark.parametrize("read_again", [False, True])
def test_unassigned_workers_occupy_gpus_while_registered(read_again: bool) -> None:  # noqa: FBT001 - a case
    models = four_each()
    registered = [RegisteredWorker(record, 5) for record in models.workers.values()]
    rename(models)
    if read_again:
        models.schedule(RegistryRead(registered))
    else:
        models.schedule(WorkerRegistered(registered[0]))  # its record has no number of GPUs
    models.run(SECOND_MS)
    assert occupied(models) == 8
    models.schedule(RegistryRead([one for one in registered if one.record.model == "b"]))
    models.run(SECOND_MS)
    assert occupied(models) == 4 + 2 * models.effective_targets()["a"]["new"], "free GPUs may be taken"


def test_a_restored_pool_gets_its_workers_back() -> None:
    models = four_each()
    before = models.controller.settings.models
    rename(models)
    change(models, *before)
    assert (models.effective_targets()["a"], occupied(models)) == ({"old": 2}, 8)
    assert models.controller.state.fleet.unassigned.gpus == {}


@pytest.mark.parametrize(("model", "taken"), [("a", 3), ("others", 0)])
def test_a_worker_of_an_unknown_pool_occupies_its_reported_gpus(model: str, taken: int) -> None:
    models = models_of({"h100": 8}, {"a": 1})
    record = WorkerRecord(model, "gone", "w", "aggregated", 1, accelerator="h100", gpus=3)
    models.schedule(WorkerRegistered(RegisteredWorker(record, 5)))
    models.run(SECOND_MS)
    assert occupied(models) == 1 + taken


def test_quotas_and_the_fleet_budget_count_unassigned_workers() -> None:
    models = models_of(
        {},
        {"a": [(pool("old", width=2), 2)], "b": 4},
        quotas={"team": {"h100": 8}},
        namespaces={"a": "team", "b": "team"},
    )
    models.controller.state.fleet.knobs = FleetKnobs(gpu_budget_max=8)
    settings = models.controller.settings
    models.controller.settings = replace(settings, fleet=FleetKnobs(gpu_budget_max=8))
    rename(models)
    assert supplies(models)["team/h100"].occupied == 8
    models.propose("a", new=2)
    models.run(10 * SECOND_MS)
    assert models.effective_targets()["a"] == {"new": 0}


def test_free_gpus_are_computed_once_for_all_waiting_models(monkeypatch: pytest.MonkeyPatch) -> None:
    models = models_of({"h100": 60}, {f"m{number}": 1 for number in range(40)}, first={"m0": 1, "m1": 1})
    allocation, fleet = models.controller.state.allocation, models.controller.state.fleet
    allocation.waiting = {name: GpuWait(START, {"h100": 1}, {"h100": 0}) for name in fleet.models}
    settings, asked = models.controller.settings, list[str]()
    free = GpuLedger.free

    def read_free(ledger: GpuLedger, supply: str) -> int:
        asked.append(supply)
        return free(ledger, supply)

    monkeypatch.setattr(GpuLedger, "free", read_free)
    ledger = gpu_ledger_of(fleet, {}, limited_supplies(settings, fleet), models.now)
    assert ledger is not None
    assert len(list(allocation.models_to_wake(ledger))) == 40, "18 GPUs are free for the lowest priority"
    assert len(asked) == 2, "once for each priority"
