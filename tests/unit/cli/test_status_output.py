"""Text status of a model: its owner, objectives and accelerators."""

import re

from msgspec.structs import replace

from loadline.cli.status_output import HEADER, format_model, format_statuses
from loadline.core.controller import Controller
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.queries.status import status
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.status import ModelStatus, RaisedAlarm, TrafficStatus
from tests.support.fleet_harness import START
from tests.support.statuses import agent


def status_of(planner: str) -> ModelStatus:
    pools = (PoolKnobs("big", "aggregated", accelerator="dgx"), PoolKnobs("small", "aggregated"))
    model = ModelKnobs(
        "chat",
        pools,
        namespace="team-a",
        priority=1,
        service_class="premium",
        planner=planner,
        objectives=ObjectiveKnobs(300.0, 25.0, attainment=0.0),
    )
    accelerators = (AcceleratorKnobs("dgx", "h100"),)
    agent = Controller(Settings("a", "all", (model,), accelerators=accelerators))
    (found,) = status(agent.settings, agent.state, "0", START, START).models
    return found


def lines(planner: str, *, only_migration: bool = False) -> list[str]:
    return format_model(status_of(planner), only_migration=only_migration).splitlines()


def test_a_model_is_shown_with_owner_objectives_and_accelerators() -> None:
    printed = lines("queueing")
    assert printed[0] == "chat (queueing planner, team-a, priority 1, class premium)"
    assert "  objectives: ttft_ms 300, itl_ms 25, attainment 0" in printed
    assert "  accelerators: big h100" in printed


def test_an_agent_that_only_migrates_shows_nothing_about_scaling() -> None:
    printed = lines("queueing", only_migration=True)
    assert printed[0] == "chat (migration only, team-a, priority 1, class premium)"
    assert printed[1].split() == [word for word in HEADER if word not in {"desired", "pending"}]
    assert not [line for line in printed if line.strip().startswith(("scaled to zero", "missing", "objectives"))]
    assert [line for line in lines("queueing") if line.strip().startswith(("scaled to zero", "missing", "objectives"))]


def test_the_load_of_a_silent_pool_is_unknown() -> None:
    model = status_of("auto")
    big, small = model.pools
    silent, empty = replace(big, ready=2, fresh=0, waiting_requests=0), replace(small, ready=0, fresh=0)
    rows = [line.split() for line in format_model(replace(model, pools=(silent, empty))).splitlines()[2:4]]
    assert [row[-3:] for row in rows] == [["-", "-", "-"], ["0%", "0", "0"]]


def test_traffic_is_shown_with_its_attainment() -> None:
    counts = TrafficStatus(4.0, 250.0, 80.0, 200.0, 20.0, 3, 12, 1, ttft_attainment=0.975)
    model = replace(status_of("auto"), traffic=counts)
    printed = [line.strip() for line in format_model(model).splitlines()]
    assert "traffic: 4.0 requests/s, ISL 250, OSL 80, TTFT 200 ms, ITL 20.0 ms, 3 queued, 12 in flight" in printed
    assert "attainment: 97.5% of requests within TTFT" in printed
    both = replace(counts, itl_attainment=0.9, both_attainment=0.88)
    judged = "attainment: 97.5% of requests within TTFT, 90.0% of requests within ITL, 88.0% of requests within both"
    assert judged in format_model(replace(model, traffic=both))
    rare = format_model(replace(model, traffic=replace(counts, ttft_attainment=0.9999)))
    assert "attainment: 99.9% of requests within TTFT" in rare  # 100% would hide the misses
    unjudged = format_model(replace(model, traffic=replace(counts, ttft_attainment=None)))
    assert "attainment: unknown, since frontends report neither ttft_met nor itl_met" in unjudged
    assert "attainment:" not in "\n".join(lines("auto"))


def test_objectives_that_the_planner_ignores_are_not_shown() -> None:
    printed = lines("threshold")
    assert printed[0].startswith("chat (threshold planner")
    assert not [line for line in printed if "objectives" in line]


def test_alarms_of_the_last_hour_are_listed_with_their_times() -> None:
    alarms = (
        RaisedAlarm("workers_missing", "chat", "d-1 is not ready", 45_296_000, 3),
        RaisedAlarm("store_went_back", "", "x", 0, 1),
    )
    printed = format_statuses([replace(agent(), alarms=alarms)])
    assert "  12:34:56 workers_missing chat: d-1 is not ready (3 times)\n  00:00:00 store_went_back: x" in printed
    assert "alarms" not in format_statuses([agent()])


def test_the_first_seconds_do_not_contradict_themselves() -> None:
    printed = "\n".join(lines("auto"))
    for pool in ("big", "small"):
        assert re.search(rf"^{pool} +aggregated  - +0 +0 ", printed, re.MULTILINE), "nothing is decided yet"
    assert "scaled to zero" not in printed
    assert "=True" not in printed
    assert "missing: chat: no worker of pool big is ready" in printed
