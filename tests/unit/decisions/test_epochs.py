"""Epochs rise whatever happens to the store, and a store that lost data is reported."""

import asyncio

import pytest

from loadline.core.decisions.leadership import Leadership, LeadershipKnobs
from loadline.core.vocabulary.effects import AnyEffect, Campaign, RenewLease
from loadline.core.vocabulary.events import AnyEvent, CampaignLost, LeaderChanged, LeadershipWon, LeaseRenewalFailed
from loadline.ports import CommitResult, Compare, Write
from loadline.runtime.effects import EffectRunner
from loadline.runtime.registry import RegistryTranslator
from loadline.sim.world.agent import NullLog
from loadline.sim.world.fitter import InlineFitter
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.tasks import VirtualTask
from loadline.wire.codec import decode_epoch
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryBus, MemoryStore

T0 = 1_700_000_000_000
KEYS = Keys("default")
LEADER, EPOCH = KEYS.leader("all"), KEYS.epoch("all")
LEASE = 7


def follower() -> Leadership:
    leadership = Leadership("all", LeadershipKnobs())
    leadership.bus_changed(connected=True, now=T0)
    return leadership


def campaign_of(leadership: Leadership, now: int) -> Campaign:
    (effect,) = leadership.tick(now)
    assert isinstance(effect, Campaign)
    return effect


# -- the epoch that the core requests ----------------------------------------------------------------------------------


def test_an_epoch_is_at_least_the_time_of_its_campaign() -> None:
    assert campaign_of(follower(), T0 + 5).epoch_min == T0 + 5


def test_an_epoch_is_above_all_that_the_agent_has_seen_even_if_its_clock_is_behind() -> None:
    leadership = follower()
    leadership.leader_changed(LeaderChanged("all", "", 0, 90, epoch=T0 + 3_600_000), T0)
    leadership.leader_changed(LeaderChanged("all", "", 0, 5, store_went_back=True), T0)
    assert campaign_of(leadership, T0 + 10).epoch_min == T0 + 3_600_001


def test_an_epoch_is_above_those_of_all_terms_of_this_agent() -> None:
    leadership = follower()
    leadership.tick(T0)
    leadership.won(LeadershipWon("all", T0 + 3_600_000, LEASE, T0, 40), T0)
    leadership.step_down(T0)
    assert campaign_of(leadership, T0 + 60_000).epoch_min == T0 + 3_600_001


# -- the epoch that a campaign writes ----------------------------------------------------------------------------------


def run(store: MemoryStore, effect: AnyEffect, agent: str = "a") -> AnyEvent:
    """Perform an effect of an agent and return its answer."""
    answers: list[AnyEvent] = []
    runner = EffectRunner(
        agent=agent,
        bus=MemoryBus(),
        store=store,
        fitter=InlineFitter(),
        subjects=Subjects("loadline"),
        keys=KEYS,
        put=answers.append,
        log=NullLog(),
    )
    asyncio.run(runner.perform(effect))
    (answer,) = answers
    return answer


def wins(store: MemoryStore, epoch_min: int) -> LeadershipWon:
    """Win a campaign, and end the term."""
    answer = run(store, Campaign("all", 10, T0, epoch_min))
    assert isinstance(answer, LeadershipWon), answer
    store.server.revoke(answer.lease_id)
    return answer


def test_epochs_rise_strictly_between_agents_whose_clocks_differ() -> None:
    store = MemoryStore()
    assert [wins(store, now).epoch for now in (T0, T0 + 3_600_000, T0 + 10_000, T0, T0 + 3_600_005)] == [
        T0,
        T0 + 3_600_000,
        T0 + 3_600_001,
        T0 + 3_600_002,
        T0 + 3_600_005,
    ]


@pytest.mark.parametrize("value", [b"", b"soon", b"-5", b"9" * 16, b"\xff", "٣".encode(), b" 1"])
def test_an_unreadable_epoch_counts_as_none(value: bytes) -> None:
    assert decode_epoch(value) == 0
    store = MemoryStore()
    store.server.commit([], [Write(EPOCH, value)])
    assert wins(store, T0).epoch == T0
    assert wins(store, T0).epoch == T0 + 1


@pytest.mark.parametrize("value", ["9" * 5_000, "1000000000 x", "٣ x", "-1 x", "x", " "])
def test_an_unreadable_layout_is_replaced(value: str) -> None:
    store = MemoryStore()
    store.server.commit([], [Write(KEYS.layout, value.encode())])
    assert isinstance(run(store, Campaign("all", 10, T0, T0)), LeadershipWon)
    assert KEYS.layout not in store.server.keys, "that of an agent that shares nothing"


def test_two_terms_never_have_one_epoch_even_if_one_begins_and_ends_during_the_campaign_of_another() -> None:
    class Slow(MemoryStore):
        async def grant(self, ttl_s: int) -> int:
            self.server.commit([], [Write(EPOCH, b"%d" % T0)])  # the other term, which is over again
            return await super().grant(ttl_s)

    store = Slow()
    assert isinstance(run(store, Campaign("all", 10, T0, T0)), CampaignLost)
    assert store.server.keys[EPOCH].value == b"%d" % T0
    assert LEADER not in store.server.keys


def test_a_commit_under_the_lease_of_a_lost_term_is_refused_even_at_the_same_create_revision() -> None:
    async def outcome(store: MemoryStore, lease_id: int) -> CommitResult:
        return await store.commit([Compare(LEADER, "lease", lease_id)], [Write("x", b"")])

    first, second = MemoryStore(), MemoryStore()
    second.server.grant(10)
    leases = []
    for store in (first, second):
        leases.append(store.server.grant(10))
        store.server.revision = 50
        store.server.commit([], [Write(LEADER, b"a", leases[-1])])
    assert first.server.keys[LEADER].create_revision == second.server.keys[LEADER].create_revision
    assert asyncio.run(outcome(second, leases[1])).committed
    assert not asyncio.run(outcome(second, leases[0])).committed


@pytest.mark.parametrize("successor", [True, False])
def test_a_leader_whose_key_was_removed_does_not_write_it_again(successor: bool) -> None:  # noqa: FBT001 - a case
    store = MemoryStore()
    won = run(store, Campaign("all", 10, T0, T0))
    assert isinstance(won, LeadershipWon)
    store.server.commit([], [Write(LEADER, None)])
    if successor:
        store.server.commit([], [Write(LEADER, b"b", store.server.grant(10))])
    answer = run(store, RenewLease("all", won.lease_id, T0))
    assert isinstance(answer, LeaseRenewalFailed)
    assert answer.lost
    assert LEADER not in store.server.keys or store.server.keys[LEADER].value == b"b"


# -- events of the watch -----------------------------------------------------------------------------------------------


class Watch:
    """Events of the leader from the watch of one agent, over one or several stores."""

    def __init__(self) -> None:
        self.events: list[LeaderChanged] = []
        self._translator = RegistryTranslator(KEYS, "all", self._record, lambda _rejected: None)

    def _record(self, event: AnyEvent) -> None:
        if isinstance(event, LeaderChanged):
            self.events.append(event)

    def follow(self, store: VirtualStore) -> None:
        """Follow a store from now on, beginning with a snapshot."""
        translator, connection = self._translator, store.connection()
        VirtualTask(
            connection.follow(KEYS.prefix, translator.on_snapshot, translator.on_changes, lambda _connected: None)
        )


def copy_of(store: VirtualStore) -> VirtualStore:
    """Return a store that was restored from a backup made now."""
    restored = MemoryStore().server
    restored.revision, restored.keys = store.revision, dict(store.keys)
    return restored


def test_the_watch_reports_the_epoch_of_each_term_also_after_its_leader_has_left() -> None:
    store, watch = MemoryStore(), Watch()
    watch.follow(store.server)
    wins(store, T0)
    wins(store, T0)
    assert [(event.leader, event.epoch) for event in watch.events] == [
        ("", 0),
        ("a", T0),
        ("", T0),
        ("a", T0 + 1),
        ("", T0 + 1),
    ]
    watch.follow(store.server)
    assert (watch.events[-1].leader, watch.events[-1].epoch) == ("", T0 + 1), "a snapshot has it too"
    assert not any(event.store_went_back for event in watch.events)


def test_the_watch_reports_once_that_a_store_was_restored_to_an_earlier_time_of_the_same_term() -> None:
    store, watch = MemoryStore(), Watch()
    watch.follow(store.server)
    wins(store, T0)
    backup = copy_of(store.server)
    store.server.commit([], [Write(KEYS.decision("m"), b"lost")])
    for _ in range(2):
        watch.follow(backup)
    assert [event.store_went_back for event in watch.events[-2:]] == [True, False]


@pytest.mark.parametrize("lost", ["all", "a term"])
def test_the_watch_reports_that_the_store_has_lost_a_term_even_if_it_has_counted_on(lost: str) -> None:
    store, watch, backup = MemoryStore(), Watch(), MemoryStore().server
    watch.follow(store.server)
    if lost == "a term":
        wins(store, T0)
        backup = copy_of(store.server)
    wins(store, T0)
    backup.revision = store.server.revision + 100
    watch.follow(backup)
    assert watch.events[-1].store_went_back
