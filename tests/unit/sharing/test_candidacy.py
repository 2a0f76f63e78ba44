"""Elections of a shard among agents that share the models: whose turn it is, and handovers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.decisions.candidacy import (
    HANDOVER_MS,
    HANDOVER_RETRY_MS,
    RETURNED_MS,
    YIELD_MS,
    Candidacy,
    rank_of,
)
from loadline.core.decisions.leadership import Leadership, LeadershipKnobs
from loadline.core.vocabulary.effects import Campaign
from loadline.core.vocabulary.events import LeaderChanged, LeadershipWon, LeaseRenewed

SCOPE = "shard-3"
AGENTS = st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=6)
SCOPES = [f"shard-{number}" for number in range(32)]
NOW = 1_000_000


@given(AGENTS)
def test_agents_agree_on_all_ranks(agents: set[str]) -> None:
    for scope in SCOPES[:4]:
        assert sorted(rank_of(agent, agents, scope) for agent in agents) == list(range(len(agents)))


@given(AGENTS, st.text("ghi", min_size=1, max_size=3))
def test_an_agent_that_joins_or_leaves_moves_only_its_scopes(agents: set[str], other: str) -> None:
    for scope in SCOPES:
        before = min(agents, key=lambda agent: rank_of(agent, agents, scope))
        after = min({*agents, other}, key=lambda agent: rank_of(agent, {*agents, other}, scope))
        assert after in {before, other}


def test_scopes_are_spread_over_all_agents() -> None:
    agents = ["a", "b", "c"]
    led = [agent for scope in SCOPES for agent in agents if rank_of(agent, agents, scope) == 0]
    assert {agent: led.count(agent) >= 5 for agent in agents} == dict.fromkeys(agents, True)


def ranked() -> list[str]:
    """Return three agents in the order of their ranks."""
    return sorted("abc", key=lambda agent: rank_of(agent, "abc", SCOPE))


def election(agent: str) -> Leadership:
    """Return the election of an agent that receives the reports of its models."""
    found = Leadership(SCOPE, LeadershipKnobs(), candidacy=Candidacy(agent), layout="4 x")
    found.bus_changed(connected=True, now=NOW)
    return found


def campaigns(leadership: Leadership, now: int) -> bool:
    return any(isinstance(effect, Campaign) for effect in leadership.tick(now))


def win(leadership: Leadership, now: int) -> None:
    leadership.won(LeadershipWon(SCOPE, now, 7, now, 1), now)


def hand_over(first: str, second: str) -> tuple[Leadership, int]:
    """Return the election of an agent that has handed over to a higher-ranked one, and the time of that."""
    leadership, now = election(second), NOW + HANDOVER_MS
    leadership.agents_changed(sorted([first, second]), NOW)
    win(leadership, NOW)
    leadership.tick(now)
    leadership.step_down(now)
    return leadership, now


def test_no_agent_campaigns_before_it_knows_who_lives() -> None:
    leadership = election("a")
    assert not campaigns(leadership, NOW)
    assert leadership.next_wake() is None
    leadership.agents_changed([], NOW)
    (campaign,) = leadership.tick(NOW)
    assert isinstance(campaign, Campaign)
    assert campaign.layout == "4 x"


def test_the_first_agent_campaigns_at_once_and_the_others_later() -> None:
    for rank, agent in enumerate(ranked()):
        leadership = election(agent)
        leadership.agents_changed(list("abc"), NOW)
        assert campaigns(leadership, NOW) == (rank == 0)
        if rank:
            assert not campaigns(leadership, NOW + rank * YIELD_MS - 1)
            assert campaigns(leadership, NOW + rank * YIELD_MS)


def test_a_shard_is_free_for_a_second_at_most_whoever_is_cut_off() -> None:
    many = [f"agent-{number}" for number in range(20)]
    for agent in many:
        leadership = election(agent)
        leadership.agents_changed(many, NOW)
        assert campaigns(leadership, NOW + 1_000)


def test_an_agent_needs_no_reports_before_it_knows_who_lives_and_after_it_has_resigned() -> None:
    leadership = election(ranked()[0])
    assert not leadership.wants_reports
    leadership.agents_changed(list("abc"), NOW)
    assert leadership.wants_reports
    leadership.resign(NOW)
    assert not leadership.wants_reports


def test_an_agent_that_was_never_connected_waits_for_reports() -> None:
    leadership = Leadership(SCOPE, LeadershipKnobs(), candidacy=Candidacy("a"))
    leadership.agents_changed(["a"], NOW)
    assert not campaigns(leadership, NOW)
    leadership.bus_changed(connected=True, now=NOW + 5)
    assert campaigns(leadership, NOW + 5)


def test_a_lower_ranked_agent_retries_its_campaign_later() -> None:
    for rank, agent in enumerate(ranked()):
        leadership = election(agent)
        leadership.agents_changed(list("abc"), NOW)
        leadership.tick(NOW + 1_000)
        leadership.lost_campaign("", 0, NOW + 1_100)
        assert leadership.next_wake() == NOW + 1_600 + rank * YIELD_MS


def test_agents_that_leave_and_a_short_loss_of_the_bus_do_not_change_whose_turn_it_is() -> None:
    first, second, _ = ranked()
    leadership = election(second)
    leadership.agents_changed(list("abc"), NOW)
    leadership.bus_changed(connected=False, now=NOW + 100)
    leadership.bus_changed(connected=True, now=NOW + 200)
    assert not campaigns(leadership, NOW + 200)
    leadership.agents_changed(sorted([first, second]), NOW + 400)
    assert campaigns(leadership, NOW + YIELD_MS)


def test_a_leader_needs_reports_whatever_its_rank() -> None:
    leadership = election(ranked()[2])
    leadership.agents_changed(list("abc"), NOW)
    win(leadership, NOW)
    assert leadership.wants_reports


def test_an_agent_that_becomes_the_first_campaigns_at_once_for_a_free_key() -> None:
    first, second, third = ranked()
    leadership = election(second)
    leadership.agents_changed(sorted([first, second, third]), NOW)
    leadership.agents_changed(sorted([second, third]), NOW + 100)
    assert campaigns(leadership, NOW + 100)


def test_an_agent_whose_turn_comes_campaigns_when_the_key_is_removed() -> None:
    first, second, _ = ranked()
    leadership = election(second)
    leadership.leader_changed(LeaderChanged(SCOPE, first, 5, 1, beat=1), NOW)
    leadership.agents_changed(list("abc"), NOW)
    assert not leadership.wants_reports
    leadership.agents_changed(sorted(set("abc") - {first}), NOW + 100)
    assert leadership.wants_reports
    assert not campaigns(leadership, NOW + 100)
    leadership.leader_changed(LeaderChanged(SCOPE, "", 0, 2), NOW + 200)
    assert campaigns(leadership, NOW + 200)


def test_a_campaign_waits_for_the_reports_of_the_models() -> None:
    _, second, _ = ranked()
    leadership = election(second)
    leadership.bus_changed(connected=False, now=NOW)
    leadership.agents_changed(list("abc"), NOW)
    assert not leadership.wants_reports
    assert not campaigns(leadership, NOW + YIELD_MS)
    assert leadership.wants_reports
    assert leadership.next_wake() == NOW + YIELD_MS + 60_000, "their arrival triggers it at once"
    leadership.bus_changed(connected=True, now=NOW + YIELD_MS + 3)
    assert campaigns(leadership, NOW + YIELD_MS + 3)


def test_a_leader_hands_over_to_a_higher_ranked_agent_that_lives_for_a_while() -> None:
    first, second, _ = ranked()
    leadership = election(second)
    leadership.agents_changed([second], NOW)
    win(leadership, NOW)
    assert leadership.next_wake() == NOW + 3_333, "the renewal"
    leadership.agents_changed(sorted([first, second]), NOW + 100)
    assert leadership.next_wake() == NOW + 3_333
    leadership.renewed(LeaseRenewed(SCOPE, 7, NOW + 3_000))
    assert leadership.next_wake() == NOW + 100 + HANDOVER_MS
    leadership.tick(NOW + 100 + HANDOVER_MS - 1)
    assert not leadership.handing_over
    leadership.tick(NOW + 100 + HANDOVER_MS)
    assert leadership.handing_over
    assert leadership.next_wake() == NOW + 3_000 + LeadershipKnobs().lease_ttl_s * 1_000 // 3, "nothing is due before"
    leadership.step_down(NOW + 100 + HANDOVER_MS)
    assert not leadership.handing_over
    leadership.leader_changed(LeaderChanged(SCOPE, "", 0, 9), NOW + 5_200)
    assert not campaigns(leadership, NOW + 5_200)


def test_a_leader_keeps_a_shard_if_the_higher_ranked_agent_leaves_again() -> None:
    first, second, _ = ranked()
    leadership = election(second)
    leadership.agents_changed([second], NOW)
    win(leadership, NOW)
    leadership.agents_changed(sorted([first, second]), NOW + 100)
    leadership.agents_changed([second], NOW + 200)
    leadership.tick(NOW + 200 + HANDOVER_MS)
    assert not leadership.handing_over


def test_a_shard_that_was_not_taken_is_kept_for_a_minute() -> None:
    first, second, _ = ranked()
    leadership, handed_over = hand_over(first, second)
    returned = handed_over + YIELD_MS
    win(leadership, returned)
    for now in (returned + HANDOVER_MS, returned + HANDOVER_RETRY_MS - 1):
        leadership.deadline_ms = now + 1_000
        leadership.tick(now)
        assert not leadership.handing_over
    leadership.deadline_ms = returned + HANDOVER_RETRY_MS + 1
    leadership.tick(returned + HANDOVER_RETRY_MS)
    assert leadership.handing_over


def test_a_shard_that_returns_because_its_next_leader_died_is_handed_over_as_any_other() -> None:
    first, second, _ = ranked()
    leadership, handed_over = hand_over(first, second)
    for name in (second, first):  # its own last heartbeat is seen late
        leadership.leader_changed(LeaderChanged(SCOPE, name, 9, 9, beat=9), handed_over)
    leadership.leader_changed(LeaderChanged(SCOPE, "", 0, 10), handed_over + 1_000)
    leadership.agents_changed([second], handed_over + 1_000)
    win(leadership, handed_over + 1_000)
    leadership.agents_changed(sorted([first, second]), handed_over + 2_000)
    leadership.tick(handed_over + 2_000 + HANDOVER_MS)
    assert leadership.handing_over


def test_other_agents_that_come_and_go_do_not_delay_a_handover() -> None:
    first, second, third = ranked()
    leadership = election(second)
    leadership.agents_changed(sorted([first, second]), NOW)
    win(leadership, NOW)
    leadership.agents_changed(sorted([first, second, third]), NOW + 3_000)
    leadership.tick(NOW + HANDOVER_MS)
    assert leadership.handing_over


def test_own_heartbeats_that_are_seen_late_are_no_sign_that_a_shard_was_taken() -> None:
    first, second, _ = ranked()
    leadership, handed_over = hand_over(first, second)
    leadership.leader_changed(LeaderChanged(SCOPE, second, 9, 9, beat=9), handed_over + 10)
    leadership.leader_changed(LeaderChanged(SCOPE, "", 0, 10), handed_over + 20)
    win(leadership, handed_over + 1_000)
    leadership.tick(handed_over + 1_000 + HANDOVER_MS)
    assert not leadership.handing_over


@pytest.mark.parametrize(("returned_ms", "wait_ms"), [(29_999, HANDOVER_RETRY_MS), (RETURNED_MS, HANDOVER_MS)])
def test_a_shard_that_returns_late_is_handed_over_as_any_other(returned_ms: int, wait_ms: int) -> None:
    leadership, handed_over = hand_over(*ranked()[:2])
    returned = handed_over + returned_ms
    win(leadership, returned)
    leadership.deadline_ms = returned + wait_ms + 1
    leadership.tick(returned + wait_ms - 1)
    assert not leadership.handing_over
    leadership.tick(returned + wait_ms)
    assert leadership.handing_over


def test_a_shard_that_was_lost_without_a_handover_is_handed_over_as_any_other() -> None:
    first, second, _ = ranked()
    leadership = election(second)
    leadership.agents_changed(sorted([first, second]), NOW)
    win(leadership, NOW)
    leadership.step_down(NOW + 100)
    win(leadership, NOW + 1_000)
    leadership.tick(NOW + 1_000 + HANDOVER_MS)
    assert leadership.handing_over


def test_a_first_handover_is_not_delayed_where_the_clock_counts_from_0() -> None:
    first, second, _ = ranked()
    candidacy = Candidacy(second)
    candidacy.update(sorted([first, second]), SCOPE)
    candidacy.consider_handover(1_000)
    assert candidacy.handover_at_ms == 1_000 + HANDOVER_MS


def test_an_agent_that_waited_for_reports_needs_none_once_another_one_leads() -> None:
    first, second, _ = ranked()
    leadership = election(second)
    leadership.bus_changed(connected=False, now=NOW)
    leadership.agents_changed(list("abc"), NOW)
    leadership.tick(NOW + YIELD_MS)
    leadership.leader_changed(LeaderChanged(SCOPE, first, 5, 1, beat=1), NOW + 600)
    assert not leadership.wants_reports
    leadership.bus_changed(connected=True, now=NOW + 700)
    assert not campaigns(leadership, NOW + 700)


def test_a_leader_whose_partition_changed_gives_up_the_shard() -> None:
    leadership = election("a")
    leadership.agents_changed(["a"], NOW)
    win(leadership, NOW)
    leadership.layout_changed("4 x")
    assert not leadership.handing_over
    leadership.layout_changed("4 y")
    assert leadership.handing_over
    leadership.step_down(NOW + 100)
    (campaign,) = leadership.tick(NOW + 2_000)
    assert isinstance(campaign, Campaign)
    assert campaign.layout == "4 y"


def test_a_follower_whose_partition_changed_has_nothing_to_give_up() -> None:
    leadership = election("a")
    leadership.agents_changed(["a"], NOW)
    leadership.layout_changed("4 y")
    assert not leadership.handing_over
