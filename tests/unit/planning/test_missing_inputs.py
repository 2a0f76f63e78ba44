"""Missing inputs of planners."""

from loadline.cli.status_output import format_model
from loadline.core.controller import Controller
from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.queries.status import missing, status
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.events import TrafficReported, WorkerRegistered
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.fleet_harness import START, registered

LINEAR = EngineProfile(linear=LinearKnobs(10.0, 0.1, 5.0, 0.02, 1e6))


def controller(planner: str, engine: EngineProfile | None = None) -> Controller:
    model = ModelKnobs("m", (PoolKnobs("decode", "decode"),), planner=planner)
    return Controller(Settings("a", "all", (model,), profiles={"m": {"decode": engine}} if engine else {}))


def missing_texts(agent: Controller, now: int = START) -> list[str]:
    (model,) = agent.settings.models
    return missing(agent.state.fleet.models["m"], model, now)


def test_missing_workers_traffic_and_profiles_are_listed() -> None:
    agent = controller("sla")
    assert [text.split(":")[1] for text in missing_texts(agent)] == [
        " no worker of pool decode is ready",
        " no frontend reports traffic",
        " decode",
    ]
    agent = controller("sla", LINEAR)
    agent.handle([WorkerRegistered(registered("w"))], START)
    assert missing_texts(agent) == ["m: no frontend reports traffic"]
    agent.handle([TrafficReported("m", "f", 1, TrafficSample(1, 1_000, 0))], START)
    assert missing_texts(agent) == []
    found = status(agent.settings, agent.state, "0", START, START + 6_000)
    assert found.models[0].missing == ("m: no frontend reports traffic",)


def test_an_unusable_profile_is_listed_with_its_remedy() -> None:
    agent = controller("throughput", EngineProfile(problem="d.npz: not one. Profile again."))
    assert "d.npz: not one. Profile again." in missing_texts(agent)[-1]


def test_a_planner_without_profiles_misses_none() -> None:
    agent = controller("threshold")
    agent.handle([WorkerRegistered(registered("w"))], START)
    assert missing_texts(agent) == []


def test_profiles_are_in_the_settings_and_not_in_a_snapshot() -> None:
    agent, other = controller("sla", LINEAR), controller("sla", LINEAR)
    assert b"gamma" not in agent.snapshot()
    other.restore(agent.snapshot())
    assert other.state.fleet.models["m"].pools["decode"].engine == LINEAR


def test_a_pool_with_target_zero_misses_no_worker() -> None:
    pools = tuple(PoolKnobs(name, "decode", replicas_min=0) for name in ("big", "small"))
    agent = Controller(Settings("a", "all", (ModelKnobs("m", pools, planner="saturation"),)))
    assert missing_texts(agent) == ["m: no worker of pool big is ready", "m: no worker of pool small is ready"], (
        "no worker serves"
    )
    for name, count in (("big", 1), ("small", 0)):
        agent.state.fleet.models["m"].pools[name].reset_decided(count, START)
    assert missing_texts(agent) == ["m: no worker of pool big is ready"]


def test_a_model_at_zero_misses_no_worker_but_needs_frontends() -> None:
    model = ModelKnobs("m", (PoolKnobs("decode", "decode", replicas_min=0),), scale_to_zero_after_ms=60_000)
    agent = Controller(Settings("a", "all", (model,)))
    assert missing_texts(agent) == ["m: no frontend reports traffic"]
    agent.handle([TrafficReported("m", "f", 1, TrafficSample(1, 1_000, 0))], START)
    assert missing_texts(agent) == []
    agent.state.fleet.models["m"].pools["decode"].reset_decided(1, START)
    assert missing_texts(agent) == ["m: no worker of pool decode is ready"]


def test_a_planner_that_plans_by_workers_alone_misses_no_frontend() -> None:
    agent = controller("auto", LINEAR)
    agent.handle([WorkerRegistered(registered("w"))], START)
    assert missing_texts(agent) == []
    agent.handle([TrafficReported("m", "f", 1, TrafficSample(1, 1_000, 0))], START)
    agent.handle([], START + 6_000)
    assert missing_texts(agent, START + 6_000) == ["m: no frontend reports traffic"], "one has reported, then stopped"


def test_a_model_without_workers_is_not_scaled_to_zero_before_a_decision() -> None:
    agent = controller("threshold")
    (before,) = status(agent.settings, agent.state, "0", START, START).models
    assert "no worker of pool decode is ready" in format_model(before)
    assert "scaled to zero" not in format_model(before)
    agent.state.fleet.models["m"].pools["decode"].reset_decided(0, START)
    (after,) = status(agent.settings, agent.state, "0", START, START).models
    assert "scaled to zero" in format_model(after)
