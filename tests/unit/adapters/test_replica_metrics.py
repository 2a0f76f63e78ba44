"""Replica counts for autoscalers: correct, or absent."""

import pytest
from msgspec.structs import replace

from loadline.adapters.metrics import Metrics
from loadline.core.queries import status as query
from loadline.core.vocabulary.conditions import Condition
from loadline.core.vocabulary.events import BusConnectionChanged, LeaseRenewalFailed, RegistryRead, WorkerDeregistered
from loadline.core.vocabulary.status import AgentStatus, PoolStatus
from tests.support.controller_world import ControllerWorld, booted
from tests.support.fleet_harness import START
from tests.unit.adapters.test_metrics import samples, status_with

COUNTS = ("desired_replicas", "current_replicas", "desired_ratio")


def pool(name: str = "p0", **fields: object) -> PoolStatus:
    full: dict[str, object] = {"desired": 6, "ready": 3, "starting": 1, "decided": True} | fields
    return replace(status_with({}, {}).models[0].pools[0], pool=name, **full)


def status(*pools: PoolStatus, **fields: object) -> AgentStatus:
    full = status_with({}, {})
    known: dict[str, object] = {"model": "m", "namespace": "team-a", "settled": True, "pools": pools} | fields
    return replace(full, models=(replace(full.models[0], **known),))


def found(status_now: AgentStatus, *compatible: str) -> dict[str, float]:
    return samples(b"".join(Metrics(dict, "1", compatible).render(status_now)))


def of(world: ControllerWorld) -> dict[str, float]:
    """Return the exported counts by pool."""
    status_now = query.status(world.settings, world.controller.state, "0", START, world.now)
    desired = "loadline_desired_replicas{accelerator_type=unresolved,model=m,namespace=default,pool="
    return {
        name.removeprefix(desired).rstrip("}"): n for name, n in found(status_now).items() if name.startswith(desired)
    }


def test_counts_have_the_labels_of_the_configuration() -> None:
    labels = "accelerator_type=h100,model=m,namespace=team-a,pool=p0"
    all_of_it = found(status(pool(accelerator_type="h100")))
    counts = {
        name: value for name, value in all_of_it.items() if name.startswith(tuple(f"loadline_{c}" for c in COUNTS))
    }
    assert counts == {
        f"loadline_desired_replicas{{{labels}}}": 6,
        f"loadline_current_replicas{{{labels}}}": 4,
        f"loadline_desired_ratio{{{labels}}}": 1.5,
    }


@pytest.mark.parametrize(("recommended", "exported"), [(None, 6), (9, 9), (0, 0)])
def test_the_recommended_count_is_the_desired_one_unless_the_planner_recommends_another(
    recommended: int | None, exported: int
) -> None:
    status_now = status(pool(recommended=recommended), pool("p1", decided=False, recommended=3))
    counts = {name: n for name, n in found(status_now, "wva").items() if "recommended" in name}
    assert counts == {
        "loadline_recommended_replicas{accelerator_type=unresolved,model=m,namespace=team-a,pool=p0}": exported
    }


def test_other_autoscalers_see_the_workers_that_they_started_wherever_they_serve() -> None:
    moved_in, moved_out = pool(moved=2, recommended=7), pool("p1", desired=1, ready=1, starting=0, moved=-2)
    counts = {
        name.split("{")[0].removeprefix("loadline_") + " " + name[-3:-1]: value
        for name, value in found(status(moved_in, moved_out)).items()
        if name.startswith(("loadline_desired_", "loadline_current_", "loadline_recommended_", "loadline_unmet_"))
    }
    assert counts == {
        "desired_replicas p0": 4,
        "current_replicas p0": 2,
        "desired_ratio p0": 2,
        "recommended_replicas p0": 5,
        "unmet_replicas p0": 1,
        "desired_replicas p1": 3,
        "current_replicas p1": 3,
        "desired_ratio p1": 1,
        "recommended_replicas p1": 3,
        "unmet_replicas p1": 0,
    }


def test_the_ratio_is_the_desired_count_if_there_are_no_workers() -> None:
    ratios = [value for name, value in found(status(pool(ready=0, starting=0))).items() if "desired_ratio" in name]
    assert ratios == [6]


@pytest.mark.parametrize(
    "status_now",
    [
        status(pool(decided=False)),
        status(pool(), settled=False),
        status(pool(), no_operation=True),
    ],
    ids=["undecided", "unsettled", "advises"],
)
def test_a_count_is_absent_if_unknown_or_if_another_agent_leads(status_now: AgentStatus) -> None:
    names = found(status_now, "inferno", "wva").keys()
    assert "loadline_leading{}" in names
    assert not [name for name in names if any(count in name for count in (*COUNTS, "recommended_replicas"))]


def test_before_the_first_decision_the_count_is_that_of_the_workers_to_keep() -> None:
    world = booted()
    assert of(world) == {}, "workers may still be registering"
    world.run(6)
    assert of(world) == {"prefill": 2, "decode": 2}
    world.handle(WorkerDeregistered("m", "decode", "d2"))
    assert "m" not in world.stored
    assert of(world)["decode"] == 2, "an autoscaler replaces a worker that fails"
    world.register("decode", "d3", "d4")
    assert of(world)["decode"] == 3
    world.kv = 0.97
    world.run(31)
    assert of(world)["decode"] == world.controller.state.fleet.models["m"].pools["decode"].decided == 4


def test_without_workers_and_decision_there_is_no_count() -> None:
    world = ControllerWorld()
    world.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    world.answer_commits = False
    world.register("prefill", "p1")
    world.run(30)
    assert of(world) == {"prefill": 1}, "a 0 would stop workers that have not registered yet"


def test_a_decided_count_of_zero_is_exported() -> None:
    [desired] = [value for name, value in found(status(pool(desired=0))).items() if "desired_replicas" in name]
    assert desired == 0


def test_names_of_other_autoscalers_are_exported_only_if_configured() -> None:
    status_now = status(pool("p/0", changes={"up:kv_usage_high": 2, "down:kv_usage_low": 1}), pool("p1"))
    assert not [name for name in found(status_now) if name.startswith(("inferno", "wva"))]
    both = found(status_now, "inferno", "wva", "wva")
    assert {name.partition("_")[0] for name in both} >= {"inferno", "wva"}
    theirs = {name: value for name, value in both.items() if name.startswith("inferno")}
    variants = ("m/p%2F0", "m/p1")
    expected = {
        f"inferno_{count}{{accelerator_type=unresolved,namespace=team-a,variant_name={variant}}}": value
        for variant in variants
        for count, value in zip(COUNTS, (6.0, 4.0, 1.5), strict=True)
    }
    changed = "namespace=team-a,reason=kv_usage_{},variant_name=m/p%2F0"
    expected[f"inferno_replica_scaling_total{{direction=up,{changed.format('high')}}}"] = 2
    expected[f"inferno_replica_scaling_total{{direction=down,{changed.format('low')}}}"] = 1
    assert theirs == expected


def test_only_the_leader_exports_conditions() -> None:
    conditions = (
        Condition("MetricsAvailable", status=True, reason="MetricsFound", message="", since_ms=0),
        Condition("OptimizationReady", status=False, reason="OptimizationFailed", message="secret", since_ms=0),
    )
    status_now = status(pool(), conditions=conditions)
    labels = "condition={},model=m,namespace=team-a,reason={}"
    expected = {
        f"loadline_model_condition{{{labels.format('MetricsAvailable', 'MetricsFound')}}}": 1,
        f"loadline_model_condition{{{labels.format('OptimizationReady', 'OptimizationFailed')}}}": 0,
    }
    assert {name: n for name, n in found(status_now).items() if "condition" in name} == expected
    assert not [name for name in found(replace(status_now, leading=False)) if "condition" in name]


def test_an_agent_exports_counts_to_the_end_of_its_term() -> None:
    world = booted()
    world.kv = 0.99
    world.run(31)
    assert of(world) == {"decode": 3, "prefill": 1}
    lease = world.controller.state.leadership.lease_id
    world.handle(LeaseRenewalFailed("all", lease, lost=True))
    world.controller.state.leadership.phase = "follower"
    assert of(world) == {}


def test_a_leader_that_resumes_after_its_lease_expired_exports_no_count() -> None:
    world = booted()
    world.kv = 0.99
    while not of(world):
        world.run(1)
    world.now = world.controller.state.leadership.deadline_ms
    assert world.controller.leading, "it has not taken a turn yet"
    assert of(world) == {}


def test_committed_changes_are_counted_by_direction_and_reason() -> None:
    world = booted()
    world.kv = 0.99
    world.run(31)
    status_now = query.status(world.settings, world.controller.state, "0", START, world.now)
    changes = {one.pool: one.changes for one in status_now.models[0].pools}
    assert changes == {"prefill": {"down:prefill_queue_low": 1}, "decode": {"up:kv_usage_high": 1}}
    counted = "loadline_replica_scaling_total{direction=up,model=m,namespace=default,pool=decode,reason=kv_usage_high}"
    assert found(status_now)[counted] == 1
