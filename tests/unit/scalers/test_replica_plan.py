"""Plans of a replica scaler: by example, and on a platform whose controller acts at any time."""

import re
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadline.core.vocabulary.decisions import PoolTarget, Victim, VictimRule
from loadline.scalers.platform import PoolObservation
from loadline.scalers.platform_commands import is_ready
from loadline.scalers.replica_plan import plan_replicas

NONE: frozenset[str] = frozenset()


def target(replicas: int, *victims: str) -> PoolTarget:
    return PoolTarget("p", "decode", replicas, 0, tuple(Victim(name, int(name[1:])) for name in victims))


def seen(
    replicas: int, *workers: str, ready: int | None = None, ending: Sequence[str] = (), detail: str = ""
) -> PoolObservation:
    return PoolObservation(replicas, ready, frozenset(workers), frozenset(ending), detail, first_ordinal=0)


def test_named_victims_go_one_by_one_as_they_drain() -> None:
    wanted, state = target(1, "w1", "w2"), seen(3, "w0", "w1", "w2")
    waiting = plan_replicas("named", wanted, NONE, state)
    assert (waiting.replicas, waiting.removal, waiting.waits_for) == (3, (), "w1, w2 must drain")
    one = plan_replicas("named", wanted, frozenset({"w2"}), state)
    assert (one.replicas, one.removal) == (2, ("w2",))
    assert plan_replicas("named", wanted, NONE, state, expired=True).replicas == 1


def test_a_pool_grows_beside_victims_that_exist() -> None:
    wanted = target(3, "w1")
    assert plan_replicas("named", wanted, NONE, seen(2, "w0", "w1")).replicas == 4
    assert plan_replicas("named", wanted, NONE, seen(2, "w0", "w2")).replicas == 3
    assert plan_replicas("named", wanted, NONE, PoolObservation(2)).replicas == 3


def test_a_drained_victim_that_a_restarted_scaler_does_not_know_raises_no_count() -> None:
    wanted = target(2, "w2")
    assert plan_replicas("named", wanted, NONE, seen(2, "w0", "w1", "w2")).replicas == 2
    assert plan_replicas("named", wanted, NONE, seen(2, "w0", "w2", ending=("w2",))).replicas == 2


def test_a_count_falls_only_as_far_as_the_highest_ordinals_are_drained() -> None:
    wanted, state = target(1, "w1", "w2"), seen(3, "w0", "w1", "w2")
    assert plan_replicas("highest_ordinal", wanted, frozenset({"w1"}), state).replicas == 3
    assert plan_replicas("highest_ordinal", wanted, frozenset({"w2"}), state).replicas == 2
    assert plan_replicas("highest_ordinal", wanted, frozenset({"w1", "w2"}), state).replicas == 1


def test_ordinals_may_start_above_zero_and_have_gaps() -> None:
    wanted = target(2, "w3")
    from_one = PoolObservation(3, None, frozenset({"w1", "w2", "w3"}), first_ordinal=1)
    assert plan_replicas("highest_ordinal", wanted, frozenset({"w3"}), from_one).replicas == 2
    # w0 is started again: a count of 3 would remove w3, which is drained, and one of 2 would remove w2.
    gap = seen(4, "w1", "w2", "w3")
    assert plan_replicas("highest_ordinal", wanted, frozenset({"w3"}), gap).replicas == 3
    assert plan_replicas("highest_ordinal", wanted, NONE, gap).replicas == 4


def test_the_newest_victim_must_drain_first() -> None:
    wanted, state = target(1, "w1", "w2"), seen(3, "w0", "w1", "w2")
    assert plan_replicas("newest", wanted, frozenset({"w1"}), state).replicas == 3
    assert plan_replicas("newest", wanted, frozenset({"w2"}), state).replicas == 2


def test_an_unknown_rule_sets_the_count_at_once() -> None:
    assert plan_replicas("unknown", target(1, "w2"), NONE, seen(3, "w0", "w1", "w2")).replicas == 1


def test_victims_that_the_platform_does_not_list_hold_the_count() -> None:
    wanted = target(1, "w2")
    assert plan_replicas("named", wanted, NONE, seen(2, "pod-a", "pod-b")).waits_for == "w2 must drain"
    assert plan_replicas("named", wanted, NONE, PoolObservation(2)).replicas == 2
    assert plan_replicas("named", wanted, NONE, PoolObservation(4)).replicas == 4
    assert plan_replicas("named", wanted, frozenset({"w2"}), PoolObservation(2)).replicas == 1
    both = target(1, "w1", "w2")
    assert plan_replicas("newest", both, frozenset({"w2"}), PoolObservation(3)).replicas == 2
    assert plan_replicas("newest", both, frozenset({"w1"}), PoolObservation(3)).replicas == 3


def test_a_target_is_reached_when_its_replicas_are_ready_and_its_victims_are_gone() -> None:
    wanted = target(2, "w2")
    assert plan_replicas("named", wanted, NONE, seen(2, "w0", "w1", ready=2)).done
    late = plan_replicas("named", wanted, NONE, seen(2, "w0", ready=1, detail="quota exceeded"))
    assert (late.done, late.waits_for) == (False, "1 of 2 replicas are ready: quota exceeded")
    left = plan_replicas("named", wanted, frozenset({"w2"}), seen(2, "w0", "w1", "w2", ready=2))
    assert (left.done, left.waits_for) == (False, "the platform must remove w2")
    assert plan_replicas("named", target(0), NONE, PoolObservation(0)).done


def test_a_worker_that_becomes_ready_during_a_drain_stays_until_the_agent_names_it() -> None:
    wanted, names = target(3, "w4"), ("w0", "w1", "w2", "w3", "w4")
    loading = PoolObservation(5, 4, frozenset(names), unready=frozenset({"w3"}))
    assert plan_replicas("named", wanted, NONE, loading).removal == ("w3",)
    serving = PoolObservation(5, 5, frozenset(names), unready=NONE)
    one = plan_replicas("named", wanted, frozenset({"w4"}), serving)
    assert (one.replicas, one.removal) == (4, ("w4",))
    assert plan_replicas("newest", wanted, frozenset({"w4"}), serving).replicas == 5
    held = plan_replicas("named", wanted, frozenset({"w4"}), seen(4, *names[:4], ready=4))
    assert (held.replicas, held.done) == (4, False)
    assert held.waits_for == "1 of its workers beyond the target may serve; the agent must name them"
    assert plan_replicas("named", wanted, NONE, serving, expired=True).replicas == 3
    # A victim that drains may be the one that is not ready.
    assert plan_replicas("named", wanted, NONE, seen(5, *names, ready=4)).replicas == 5
    assert plan_replicas("named", wanted, NONE, seen(5, *names, ready=3)).replicas == 4


def test_a_rolling_update_has_more_ready_replicas_than_requested() -> None:
    assert plan_replicas("named", target(5), NONE, PoolObservation(5, 6)).done
    assert is_ready(PoolObservation(5, 6))


class Controller:
    """Controller of a platform: creates missing workers, marks surplus ones as ending and removes them, one by one."""

    def __init__(self, rule: VictimRule, random: Random, count: int) -> None:
        self.rule = rule
        self.random = random
        self.replicas = count
        self.started = count
        self.workers = {f"w{number}" for number in range(count)}
        self.serving = set(self.workers)
        self.ending: set[str] = set()
        self.preferred: tuple[str, ...] = ()
        self.quota = 30

    def create(self) -> None:
        present = self.workers - self.ending
        if len(present) >= self.replicas or len(self.workers) >= self.quota:
            return
        if self.rule == "highest_ordinal":
            free = [f"w{ordinal}" for ordinal in range(self.replicas) if f"w{ordinal}" not in self.workers]
            self.workers.update(free[:1])
        else:
            self.workers.add(f"w{self.started}")
            self.started += 1

    def evict(self) -> None:
        """Lose any worker; the controller creates another one of its name where names are numbered."""
        if self.workers:
            lost = self.random.choice(sorted(self.workers))
            for workers in (self.workers, self.serving, self.ending):
                workers.discard(lost)

    def serve(self) -> None:
        starting = sorted(self.workers - self.serving)
        if starting:
            self.serving.add(self.random.choice(starting))

    def mark_ending(self) -> str | None:
        """Select one surplus worker to remove; return it."""
        present = sorted(self.workers - self.ending, key=lambda name: int(name[1:]))
        if self.rule == "highest_ordinal":
            surplus = [name for name in present if int(name[1:]) >= self.replicas]
        else:
            surplus = present if len(present) > self.replicas else []
        if not surplus:
            return None
        starting = [name for name in surplus if name not in self.serving]
        chosen = surplus[-1]
        if self.rule == "newest" and starting:
            chosen = starting[-1]
        if self.rule == "named":
            # It prefers any worker that it was not told of to none, not to those that it was told of.
            chosen = next((name for name in self.preferred if name in surplus), self.random.choice(starting or surplus))
        self.ending.add(chosen)
        return chosen

    def remove(self) -> None:
        if self.ending:
            ended = self.ending.pop()
            self.workers.discard(ended)
            self.serving.discard(ended)

    def observe(self) -> PoolObservation:
        ready = len(self.serving - self.ending)
        unready = frozenset(self.workers - self.serving)
        workers, ending = frozenset(self.workers), frozenset(self.ending)
        return PoolObservation(self.replicas, ready, workers, ending, first_ordinal=0, unready=unready)


class World:
    """A controller, a scaler that may forget what it knows, and victims that drain at any time."""

    def __init__(self, rule: VictimRule, random: Random, before: int, wanted: int, victims: int) -> None:
        self.controller = Controller(rule, random, before)
        names = [f"w{number}" for number in range(before)]
        chosen = random.sample(names, victims) if rule == "named" else names[before - victims :]
        self.target = target(wanted, *chosen)
        self.victims = set(chosen)
        self.drained: set[str] = set()
        self.known: set[str] = set()
        self.expired = False
        self.planned: tuple[int, tuple[str, ...]] | None = None
        self.serving_at_plan, self.served = NONE, NONE

    def act(self, action: str) -> None:
        getattr(self, action)()

    def drain(self) -> None:
        undrained = sorted(self.victims - self.drained)
        if undrained:
            self.drained.add(self.controller.random.choice(undrained))

    def report(self) -> None:
        self.known |= self.drained

    def restart(self) -> None:
        self.known, self.planned = set(), None

    def plan(self) -> None:
        """Observe and plan; other actions may come before the plan is carried out."""
        state = self.controller.observe()
        self.serving_at_plan = frozenset(self.controller.serving)
        free = frozenset(self.known)
        plan = plan_replicas(self.controller.rule, self.target, free, state, expired=self.expired)
        undrained = len(self.victims & self.controller.workers - self.known - self.controller.ending)
        if plan.replicas > state.replicas and not self.expired:
            assert plan.replicas <= self.target.replicas + undrained
        assert not plan.done or state.replicas == self.target.replicas
        self.planned = (plan.replicas, plan.removal) if plan.replicas != state.replicas else None

    def carry_out(self) -> None:
        if self.planned is not None:
            if self.planned[1]:
                self.controller.preferred = self.planned[1]
            self.controller.replicas = self.planned[0]
            self.served = self.serving_at_plan
            self.planned = None

    def evict(self) -> None:
        if self.controller.rule == "highest_ordinal":  # others replace a worker by one of another name
            self.controller.evict()

    def create(self) -> None:
        self.controller.create()

    def mark_ending(self) -> None:
        needed = len(self.controller.workers - self.controller.ending - self.victims)
        ended = self.controller.mark_ending()
        if ended is None or self.expired:
            return
        if ended in self.victims:
            assert ended in self.drained, f"{ended} was removed before it was drained"
        else:
            assert needed > self.target.replicas, f"{ended} was removed, which the target needs"
            assert ended not in self.served, f"{ended} was removed, which serves and was not named"

    def serve(self) -> None:
        self.controller.serve()

    def name_surplus(self) -> None:
        """Decide as the agent does once workers beyond the target have served for some time, and drain them."""
        present = sorted(self.controller.workers, key=lambda name: int(name[1:]))
        self.target = target(self.target.replicas, *present[self.target.replicas :])
        self.victims = {victim.worker for victim in self.target.victims}
        self.drained |= self.victims

    def remove(self) -> None:
        self.controller.remove()

    def settle(self) -> None:
        """Let everybody act until nothing changes any more."""
        for _ in range(200):
            for action in ("report", "plan", "carry_out", "create", "serve", "mark_ending", "remove"):
                self.act(action)

    @property
    def done(self) -> bool:
        state = self.controller.observe()
        return plan_replicas(self.controller.rule, self.target, frozenset(self.known), state, expired=self.expired).done


ACTIONS = ("drain", "report", "restart", "plan", "carry_out", "create", "serve", "mark_ending", "remove", "evict")


@settings(max_examples=400, deadline=None)
@given(
    rule=st.sampled_from(("named", "newest", "highest_ordinal")),
    random=st.randoms(use_true_random=False),
    before=st.integers(0, 6),
    data=st.data(),
    actions=st.lists(st.sampled_from(ACTIONS), max_size=60),
)
def test_no_order_of_events_removes_a_worker_before_it_is_drained(
    rule: VictimRule, random: Random, before: int, data: st.DataObject, actions: list[str]
) -> None:
    victims = data.draw(st.integers(0, before), "victims")
    ordered = rule == "highest_ordinal"
    # An ordered platform can only remove the victims above the target.
    wanted = data.draw(st.integers(0, before - victims if ordered and victims else 8), "wanted")
    if rule != "named" and wanted > before - victims:
        victims = 0
    world = World(rule, random, before, wanted, victims)
    for action in actions:
        world.act(action)
    world.drained |= world.victims
    world.settle()
    world.name_surplus()
    world.settle()
    assert world.controller.replicas == world.target.replicas
    assert len(world.controller.workers) == world.target.replicas
    assert world.done


@settings(max_examples=200, deadline=None)
@given(
    rule=st.sampled_from(("named", "newest", "highest_ordinal")),
    random=st.randoms(use_true_random=False),
    before=st.integers(1, 6),
    data=st.data(),
)
def test_a_deadline_ends_the_wait_for_victims(
    rule: VictimRule, random: Random, before: int, data: st.DataObject
) -> None:
    victims = data.draw(st.integers(1, before), "victims")
    world = World(rule, random, before, before - victims, victims)
    world.settle()
    assert world.controller.replicas == before
    world.expired = True
    world.settle()
    assert world.controller.workers.isdisjoint(world.victims)
    assert world.done


@pytest.mark.parametrize("gone", ["missing", "ending"])
def test_a_lost_first_worker_does_not_change_which_ones_a_count_removes(gone: str) -> None:
    """The count is 5 already, and the controller has not removed the drained w5 yet."""
    names = [f"w{number}" for number in range(6)]
    wanted, ending = target(4, "w4", "w5"), ["w0"] if gone == "ending" else []
    state = seen(5, *(names if ending else names[1:]), ending=ending)
    assert plan_replicas("highest_ordinal", wanted, frozenset({"w5"}), state).replicas == 5


@pytest.mark.parametrize("count", [5, 40])
def test_a_reason_names_few_victims(count: int) -> None:
    names = [f"w{number}" for number in range(count)]
    plan = plan_replicas("named", target(0, *names), NONE, seen(count, *names))
    assert re.fullmatch(rf"w0, w1, w\d+ and {count - 3} more must drain", plan.waits_for)
