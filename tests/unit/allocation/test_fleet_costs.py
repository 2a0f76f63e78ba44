"""Cost and power of existing workers, in units of accelerators."""

from collections.abc import Iterator

from loadline.adapters.metrics import Metrics
from loadline.cli.status_output import format_statuses
from loadline.config import parse
from loadline.config.summary import describe
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.queries import status as query
from loadline.core.vocabulary.status import AgentStatus
from tests.support.config_texts import model
from tests.support.fleet_harness import START
from tests.support.multi_model_world import GpuLimits, MultiModelWorld

DGX = AcceleratorKnobs("dgx", "h100", multiplicity=8, cost_per_hour=40.0, power_w=10_000.0)
L4 = AcceleratorKnobs("l4", cost_per_hour=0.5)


def status_of(models: MultiModelWorld) -> AgentStatus:
    return query.status(models.controller.settings, models.controller.state, "0", START, models.now)


def metrics(status: AgentStatus) -> dict[str, float]:
    return dict(_lines(b"".join(Metrics(dict, "0").render(status)).decode()))


def _lines(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if line.startswith(("loadline_pool_cost", "loadline_pool_power")):
            name, value = line.rsplit(" ", 1)
            yield name.replace(',role="aggregated"', ""), float(value)


def mixed() -> MultiModelWorld:
    pools = [
        (PoolKnobs("half", "aggregated", gpus_per_worker=4, accelerator="dgx"), 3),
        (PoolKnobs("small", "aggregated", accelerator="l4"), 2),
        (PoolKnobs("any", "aggregated"), 1),
    ]
    return MultiModelWorld({"m": pools}, FleetKnobs(), limited=GpuLimits(accelerators=(DGX, L4)), drain_ms=600_000)


def test_metrics_have_the_cost_of_existing_workers() -> None:
    assert metrics(status_of(mixed())) == {
        'loadline_pool_cost_per_hour{model="m",pool="half"}': 3 * 20.0,
        'loadline_pool_cost_per_hour{model="m",pool="small"}': 2 * 0.5,
        'loadline_pool_power_watts{model="m",pool="half"}': 3 * 5_000.0,
    }


def test_draining_workers_have_a_cost() -> None:
    models = mixed()
    models.propose("m", half=1)
    models.run(30_000)
    half = status_of(models).models[0].pools[0]
    assert (half.desired, half.draining, half.cost_per_hour, half.power_w) == (1, 2, 60.0, 15_000.0)


def test_the_status_has_the_cost_if_it_is_known() -> None:
    assert "  cost: 61 per hour" in format_statuses([status_of(mixed())]).splitlines()
    unknown = MultiModelWorld({"m": [(PoolKnobs("any", "aggregated"), 1)]}, FleetKnobs())
    assert "cost" not in format_statuses([status_of(unknown)])


def test_the_description_has_the_cost_of_the_bounds() -> None:
    pool = 'name = "p"\nrole = "aggregated"\ngpus_per_worker = 4\nreplicas_min = 1\nreplicas_max = 9'
    dgx = '\n[[accelerators]]\nname = "dgx"\nmultiplicity = 8\ncost_per_hour = 40.0\n'
    named = model("", f'{pool}\naccelerator = "dgx"') + dgx
    expected = "Cost per hour of pools with an accelerator: 20 at minimum replicas, 180 at maximum replicas."
    assert expected in describe(parse(named, "f", {})).splitlines()
    assert "Cost per hour" not in describe(parse(model("", pool) + dgx, "f", {}))
