"""Answers of agents that share the models, merged into one."""

from msgspec.structs import replace

from loadline.cli.shared_models import merge_agents, merge_explanations
from loadline.cli.status_output import format_statuses
from loadline.core.controller import Controller
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.queries import status as query
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.reasons import Explanation
from loadline.core.vocabulary.status import AgentStatus, RaisedAlarm, SharingStatus
from loadline.wire.messages import ExplainReply


def agent(name: str, epoch: int, led: tuple[int, ...], *models: str) -> AgentStatus:
    """Return the status of an agent that leads models."""
    knobs = tuple(ModelKnobs(model, (PoolKnobs("p", "aggregated"),), planner="static") for model in models)
    settings = Settings(name, "all", knobs)
    found = query.status(settings, Controller(settings).state, "1", 0, 1)
    return replace(
        found,
        leading=bool(led),
        epoch=epoch,
        models=tuple(replace(model, epoch=epoch) for model in found.models),
        counters={"turns": 2},
        sharing=SharingStatus(3, led, ("a", "b")),
    )


A, B = agent("a", 7, (0,), "m", "n"), agent("b", 9, (1, 2), "n", "o")


def test_models_of_all_agents_are_listed_once_by_their_newest_leader() -> None:
    merged = merge_agents([A, B])
    assert [(model.model, model.epoch) for model in merged.models] == [("m", 7), ("n", 9), ("o", 9)]
    assert merged.sharing == SharingStatus(3, (0, 1, 2), ("a", "b"))
    assert (merged.leading, merged.epoch, merged.counters) == (True, 9, {"turns": 4})


def test_the_status_of_one_agent_stays_as_it_is() -> None:
    assert merge_agents([A]) is A
    single = replace(A, sharing=None)
    assert merge_agents([single]) is single


def test_the_text_has_a_line_for_each_agent() -> None:
    text = format_statuses([A, B])
    assert "agent a 1: leads 1 of 3 shards; live agents: a, b" in text
    assert "agent b 1: leads 2 of 3 shards; live agents: a, b" in text
    assert "no answer" not in text
    assert "no answer from b" in format_statuses([A])


def test_the_text_says_that_agents_have_different_configurations() -> None:
    first, second = (replace(one, config_digest="1f") for one in (A, B))
    assert "configurations differ" not in format_statuses([first, second])
    text = format_statuses([first, replace(second, config_digest="2e")])
    assert "configurations differ (a 1f, b 2e): each model is led by the file of its leader" in text


def test_the_shards_of_one_agent_are_one_status() -> None:
    shards = [replace(A, sharing=None), replace(B, leading=False, epoch=0, sharing=None, models=())]
    merged = query.merge_statuses(shards, 2, ["a", "b"])
    assert (merged.leading, merged.epoch, merged.leader) == (True, 7, "a")
    assert merged.sharing == SharingStatus(2, (0,), ("a", "b"))
    assert merged.sharing.led_ratio == 0.5
    assert [model.model for model in merged.models] == ["m", "n"]


def test_explanations_are_sorted_by_time() -> None:
    def reply(*times: int) -> ExplainReply:
        return ExplainReply([Explanation("m", at_ms, "held", "", {}, (), (), {}) for at_ms in times], shared=True)

    assert [one.at_ms for one in merge_explanations([reply(5, 1), reply(4)]).explanations] == [5, 4, 1]


def test_an_alarm_that_all_shards_or_agents_raise_is_listed_once() -> None:
    lost = [replace(A, sharing=None, alarms=(RaisedAlarm("store_went_back", "", "lost", at, 1),)) for at in range(64)]
    refused = RaisedAlarm("worker_refused", "m", "unknown_pool", 9, 3)
    one, other = (
        query.merge_statuses([replace(A, sharing=None, alarms=(refused,)), *shards], 2, ["a", "b"])
        for shards in (lost, lost[:20])
    )
    assert one.alarms == (lost[63].alarms[0], refused)
    assert merge_agents([one, other]).alarms == one.alarms
