"""Leader election: each phase with each event."""

from collections.abc import Callable

import pytest

from loadline.core.decisions.leadership import Leadership, LeadershipKnobs
from loadline.core.vocabulary.effects import Campaign, Effect, RenewLease, Resign
from loadline.core.vocabulary.events import LeaderChanged, LeadershipWon, LeaseRenewalFailed, LeaseRenewed

T0 = 1_700_000_000_000
KNOBS = LeadershipKnobs(lease_ttl_s=10, margin_ms=2_000, retry_ms=500, blind_after_ms=15_000)
EPOCH, REVISION, LEASE = T0 - 1_000, 40, 7
WON = LeadershipWon("all", EPOCH, LEASE, T0, REVISION)
DEADLINE = T0 + 8_000
RESIGN = [Resign("all", LEASE)]


def campaign(now: int, *, depose: int = 0) -> Campaign:
    return Campaign("all", 10, now, epoch_min=now, depose=depose)


def follower() -> Leadership:
    leadership = Leadership("all", KNOBS)
    leadership.bus_changed(connected=True, now=T0)
    return leadership


def leading() -> Leadership:
    leadership = follower()
    assert leadership.tick(T0) == [campaign(T0)]
    assert leadership.won(WON, T0 + 100) == []
    return leadership


def resigned() -> Leadership:
    leadership = leading()
    assert leadership.resign(T0 + 100) == RESIGN
    return leadership


def renewed(requested_at_ms: int, lease_id: int = LEASE) -> LeaseRenewed:
    return LeaseRenewed("all", lease_id, requested_at_ms)


# -- a campaign --------------------------------------------------------------------------------------------------------


def test_one_campaign_runs_at_a_time() -> None:
    leadership = follower()
    assert leadership.tick(T0) == [campaign(T0)]
    assert leadership.next_wake() is None, "nothing is due before the answer"
    assert leadership.tick(T0 + 60_000) == []


@pytest.mark.parametrize(("leader", "wait_ms"), [("other", 12_000), ("", 500)])
def test_a_lost_campaign_is_retried(leader: str, wait_ms: int) -> None:
    leadership = follower()
    leadership.tick(T0)
    leadership.lost_campaign(leader, 41, T0)
    assert (leadership.phase, leadership.leader, leadership.next_wake()) == ("follower", leader, T0 + wait_ms)
    assert leadership.tick(T0 + wait_ms - 1) == []
    assert leadership.tick(T0 + wait_ms) == [campaign(T0 + wait_ms, depose=41 if leader else 0)]


# -- a leader whose lease outlives it ----------------------------------------------------------------------------------


def heartbeat(revision: int) -> LeaderChanged:
    return LeaderChanged("all", "other", LEASE - 1, revision, beat=revision)


def test_a_further_heartbeat_under_its_own_name_proves_a_namesake_unless_this_agent_campaigns() -> None:
    """A watch that was interrupted may show the former process's key, and next the one of the campaign."""
    leadership = follower()
    leadership.agent = "me"
    found = []
    for revision in (41, 42, 43):
        written = LeaderChanged("all", "me", LEASE - 1, revision, beat=revision)
        found.append(leadership.has_namesake(written))
        leadership.leader_changed(written, T0)
    assert found == [False, True, True]
    depose_at = T0 + 12_000
    assert leadership.tick(depose_at) == [campaign(depose_at, depose=43)]
    assert not leadership.has_namesake(LeaderChanged("all", "me", LEASE, 50, beat=50))


def test_a_leader_that_writes_its_key_is_not_deposed() -> None:
    leadership = follower()
    for round_number in range(20):
        now = T0 + round_number * 3_333
        leadership.leader_changed(heartbeat(41 + round_number), now)
        assert leadership.tick(now + 3_332) == []
        assert leadership.next_wake() == now + 12_000


def test_a_key_that_was_not_written_for_ttl_and_margin_is_removed_at_the_revision_that_was_seen() -> None:
    leadership = follower()
    leadership.leader_changed(heartbeat(41), T0)
    leadership.leader_changed(heartbeat(41), T0 + 9_000)  # a snapshot after a gap: the key was not written again
    assert leadership.tick(T0 + 11_999) == []
    assert leadership.tick(T0 + 12_000) == [campaign(T0 + 12_000, depose=41)]
    # The key was written meanwhile, so the removal was refused; the agent waits again from the new revision.
    leadership.lost_campaign("other", 42, T0 + 12_100)
    assert leadership.next_wake() == T0 + 24_100
    assert leadership.tick(T0 + 24_100) == [campaign(T0 + 24_100, depose=42)]


def test_campaigns_at_an_unreachable_store_keep_the_retry_interval() -> None:
    leadership = follower()
    leadership.leader_changed(heartbeat(41), T0)
    leadership.tick(T0 + 12_000)
    leadership.lost_campaign("", 0, T0 + 14_000)
    assert leadership.tick(T0 + 14_499) == []
    assert leadership.tick(T0 + 14_500) == [campaign(T0 + 14_500)], "no leader is known"
    leadership.lost_campaign("other", 41, T0 + 14_600)
    assert leadership.tick(T0 + 15_100) == [campaign(T0 + 15_100, depose=41)], "the key has not been written since"


def test_a_campaign_for_a_free_key_is_retried_soon_however_fresh_the_last_heartbeat() -> None:
    leadership = follower()
    leadership.leader_changed(heartbeat(41), T0)
    leadership.leader_changed(LeaderChanged("all", "", 0, 90), T0 + 1)
    leadership.tick(T0 + 1)
    leadership.lost_campaign("", 0, T0 + 100)
    assert leadership.next_wake() == T0 + 600


def test_an_agent_that_stepped_down_deposes_its_own_key_if_the_lease_outlives_it() -> None:
    leadership = leading()
    leadership.leader_changed(LeaderChanged("all", "me", LEASE, REVISION + 3, beat=REVISION + 3), T0 + 3_400)
    assert leadership.tick(DEADLINE) == RESIGN
    leadership.lost_campaign("me", REVISION + 3, DEADLINE + 100)
    assert leadership.next_wake() == T0 + 3_400 + 12_000


def test_a_removed_leader_key_causes_a_campaign_at_once() -> None:
    leadership = follower()
    leadership.tick(T0)
    leadership.lost_campaign("other", 41, T0)
    assert leadership.leader_changed(LeaderChanged("all", "", 0, 90), T0 + 1) == []
    assert leadership.tick(T0 + 1) == [campaign(T0 + 1)]


def test_the_lease_counts_from_the_request_of_the_campaign() -> None:
    leadership = follower()
    leadership.tick(T0)
    assert leadership.won(WON, DEADLINE - 1) == []
    assert (leadership.phase, leadership.epoch, leadership.deadline_ms) == ("leading", EPOCH, DEADLINE)
    assert leadership.may_commit(DEADLINE - 1)
    assert not leadership.may_commit(DEADLINE)


def test_a_late_victory_releases_the_lease() -> None:
    leadership = follower()
    leadership.tick(T0)
    assert leadership.won(WON, DEADLINE) == RESIGN
    assert leadership.phase == "follower"
    assert not leadership.may_commit(DEADLINE)
    assert leadership.tick(DEADLINE + 1_000) == [campaign(DEADLINE + 1_000)]


def test_a_victory_after_resigning_releases_the_lease() -> None:
    leadership = follower()
    leadership.tick(T0)
    assert leadership.resign(T0 + 1) == []
    assert leadership.won(WON, T0 + 2) == RESIGN
    assert leadership.phase == "resigned"
    assert leadership.tick(T0 + 60_000) == []
    assert leadership.next_wake() is None


def test_a_removal_of_the_key_during_a_campaign_counts_although_its_older_answer_names_a_leader() -> None:
    leadership = follower()
    leadership.tick(T0)
    leadership.leader_changed(LeaderChanged("all", "", 0, 90), T0 + 1)
    leadership.lost_campaign("other", 41, T0 + 2)
    assert leadership.leader == ""
    assert leadership.tick(T0 + 502) == [campaign(T0 + 502)]
    leadership.lost_campaign("other", 91, T0 + 600)
    assert leadership.leader == "other", "the removal was of the campaign before"


def test_a_leader_that_wins_during_a_campaign_leads() -> None:
    leadership = follower()
    leadership.tick(T0)
    leadership.leader_changed(heartbeat(41), T0 + 1)
    leadership.lost_campaign("other", 41, T0 + 2)
    assert (leadership.leader, leadership.next_wake()) == ("other", T0 + 12_001)


# -- leading -----------------------------------------------------------------------------------------------------------


def test_the_lease_is_renewed_after_a_third_of_its_ttl() -> None:
    leadership = leading()
    assert leadership.next_wake() == T0 + 3_333
    assert leadership.tick(T0 + 3_332) == []
    assert leadership.tick(T0 + 3_333) == [RenewLease("all", LEASE, T0 + 3_333)]
    assert leadership.tick(T0 + 3_400) == [], "at most one renewal at a time"
    assert leadership.next_wake() == DEADLINE
    leadership.renewed(renewed(T0 + 3_333))
    assert leadership.deadline_ms == T0 + 3_333 + 8_000
    assert leadership.next_wake() == T0 + 6_666


def test_a_failed_renewal_is_retried_until_the_deadline() -> None:
    leadership = leading()
    leadership.tick(T0 + 3_333)
    assert leadership.renewal_failed(LeaseRenewalFailed("all", LEASE, lost=False), T0 + 5_000) == []
    assert leadership.tick(T0 + 5_499) == []
    assert leadership.tick(T0 + 5_500) == [RenewLease("all", LEASE, T0 + 5_500)]
    assert leadership.tick(DEADLINE) == RESIGN
    assert leadership.phase == "follower"


def test_a_paused_process_steps_down_first() -> None:
    leadership = leading()
    assert not leadership.may_commit(T0 + 3_600_000)
    assert leadership.tick(T0 + 3_600_000) == RESIGN


@pytest.mark.parametrize(
    ("event", "effects"),
    [
        (LeaseRenewalFailed("all", LEASE, lost=True), RESIGN),
        (LeaseRenewalFailed("all", LEASE - 1, lost=True), []),  # of an earlier term
        (LeaderChanged("all", "other", LEASE + 1, REVISION + 5), RESIGN),
        (LeaderChanged("all", "", 0, REVISION + 1), RESIGN),
        (LeaderChanged("all", "me", LEASE, REVISION), []),
        (LeaderChanged("all", "me", LEASE, REVISION + 30), []),  # this agent's key, in a later snapshot
        (LeaderChanged("all", "", 0, REVISION - 1), []),  # the removal that this agent's campaign won by
        (LeaderChanged("all", "other", LEASE - 1, REVISION - 9), []),
        (LeaderChanged("all", "", 0, 5, store_went_back=True), RESIGN),  # a store without its data
        (LeaderChanged("all", "me", LEASE, REVISION - 9, store_went_back=True), []),  # this term, from a backup
    ],
)
def test_a_leader_steps_down_when_its_lease_or_key_is_lost(
    event: LeaseRenewalFailed | LeaderChanged, effects: list[Effect]
) -> None:
    leadership = leading()
    now = T0 + 200
    if isinstance(event, LeaderChanged):
        assert leadership.leader_changed(event, now) == effects
    else:
        assert leadership.renewal_failed(event, now) == effects
    assert leadership.phase == ("follower" if effects else "leading")
    assert leadership.may_commit(now) is not bool(effects)


def test_a_leader_of_a_restored_store_notices_the_removal_of_its_key_at_a_lower_revision() -> None:
    leadership = leading()
    leadership.leader_changed(LeaderChanged("all", "me", LEASE, REVISION - 9, store_went_back=True), T0 + 200)
    assert leadership.leader_changed(LeaderChanged("all", "", 0, REVISION - 5), T0 + 300) == RESIGN


def test_an_agent_that_stepped_down_waits_before_its_next_campaign() -> None:
    leadership = leading()
    leadership.step_down(T0 + 200)
    assert leadership.tick(T0 + 1_199) == []
    assert leadership.tick(T0 + 1_200) == [campaign(T0 + 1_200)]


def test_a_renewal_of_an_earlier_lease_is_ignored() -> None:
    leadership = leading()
    leadership.renewed(renewed(T0 + 5_000, LEASE - 1))
    assert leadership.deadline_ms == DEADLINE


@pytest.mark.parametrize("lost", [True, False, None])
def test_a_late_answer_to_a_renewal_does_not_start_a_second_campaign(*, lost: bool | None) -> None:
    leadership = leading()
    leadership.tick(T0 + 3_333)
    leadership.step_down(T0 + 3_400)
    assert leadership.tick(T0 + 4_400) == [campaign(T0 + 4_400)]
    if lost is None:
        leadership.renewed(renewed(T0 + 3_333))
    else:
        assert leadership.renewal_failed(LeaseRenewalFailed("all", LEASE, lost=lost), T0 + 4_450) == []
    assert leadership.tick(T0 + 60_000) == []


# -- events of a follower and of a resigned agent ----------------------------------------------------------------------


@pytest.mark.parametrize("phase", [follower, resigned])
def test_late_events_do_not_restore_leadership(phase: Callable[[], Leadership]) -> None:
    leadership = phase()
    before = leadership.phase
    leadership.renewed(renewed(T0 + 60_000, leadership.lease_id))
    assert leadership.renewal_failed(LeaseRenewalFailed("all", leadership.lease_id, lost=True), T0) == []
    assert leadership.leader_changed(LeaderChanged("all", "x", 99, 99), T0) == []
    assert leadership.step_down(T0) == []
    assert leadership.phase == before
    assert not leadership.may_commit(T0)


def test_a_term_that_the_watch_reports_first_is_not_that_of_another_agent() -> None:
    leadership = follower()
    leadership.tick(T0)
    leadership.leader_changed(LeaderChanged("all", "me", LEASE, REVISION, epoch=EPOCH), T0 + 50)
    leadership.won(WON, T0 + 100)
    assert not leadership.others_led
    leadership.step_down(T0 + 200)
    leadership.leader_changed(LeaderChanged("all", "other", LEASE + 1, REVISION + 5, epoch=EPOCH + 1), T0 + 300)
    leadership.won(LeadershipWon("all", EPOCH + 2, LEASE + 2, T0 + 400, REVISION + 9), T0 + 400)
    assert leadership.others_led


def test_an_agent_that_shares_no_models_has_no_partition_to_give_up() -> None:
    leadership = leading()
    leadership.layout_changed("4 y")
    assert not leadership.handing_over
    assert leadership.may_commit(T0 + 100)


def test_an_agent_that_shares_no_models_needs_their_reports_at_all_times() -> None:
    for leadership in (follower(), leading(), resigned()):
        leadership.agents_changed(["a", "b"], T0)
        assert leadership.wants_reports


def test_resigning_releases_the_lease_once() -> None:
    leadership = leading()
    assert leadership.resign(T0 + 200) == RESIGN
    assert leadership.resign(T0 + 300) == []


# -- the bus -----------------------------------------------------------------------------------------------------------


def test_a_leader_without_a_bus_steps_down() -> None:
    leadership = leading()
    leadership.bus_changed(connected=False, now=T0 + 200)
    leadership.bus_changed(connected=False, now=T0 + 9_000)
    expires_at = T0 + 15_200
    for now in range(T0 + 1_000, expires_at, 1_000):
        leadership.renewed(renewed(now))
        leadership.awaiting = True
        assert leadership.tick(now) == []
    assert leadership.next_wake() == expires_at
    assert leadership.tick(expires_at - 1) == []
    assert leadership.tick(expires_at) == RESIGN


def test_a_short_loss_of_the_bus_changes_nothing() -> None:
    leadership = leading()
    leadership.bus_changed(connected=False, now=T0 + 200)
    leadership.bus_changed(connected=True, now=T0 + 5_000)
    leadership.renewed(renewed(T0 + 20_000))
    assert leadership.tick(T0 + 20_001) == []


def test_an_agent_without_a_bus_neither_campaigns_nor_spins() -> None:
    leadership = leading()
    leadership.bus_changed(connected=False, now=T0)
    leadership.renewed(renewed(T0 + 14_000))
    assert leadership.tick(T0 + 15_000) == RESIGN
    now = T0 + 15_000
    for _ in range(5):
        wake = leadership.next_wake()
        assert wake is not None
        assert wake > now, "a wake in the past would spin"
        now = wake
        assert leadership.tick(now) == []
    leadership.bus_changed(connected=True, now=now)
    wake = leadership.next_wake()
    assert wake is not None
    assert leadership.tick(wake) == [campaign(wake)]


def test_an_agent_that_never_had_a_bus_does_not_campaign() -> None:
    leadership = Leadership("all", KNOBS)
    leadership.bus_changed(connected=False, now=T0)
    assert leadership.tick(T0) == []
    leadership.bus_changed(connected=True, now=T0 + 5)
    assert leadership.tick(T0 + 600) == [campaign(T0 + 600)]
