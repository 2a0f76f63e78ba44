"""Agents that share the models out, in virtual time: they join, leave, die and are cut off, and every model is led."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.chaos.checker import InvariantChecker
from loadline.sim.chaos.plan import FaultPlan, draw
from loadline.sim.chaos.runner import run_plan
from loadline.sim.chaos.settings import chaos_settings
from loadline.sim.chaos.world import ChaosWorld
from loadline.wire.codec import Rejected, decode_decision
from loadline.wire.keys import Keys

MODELS = tuple(f"m{number}" for number in range(12))
LIMITED = MODELS[:4]
GPUS = 10
SHARDS = 16
TTL_MS = 10_000.0
SETTLED_MS = 30_000.0
"""Time after which agents that started have all models divided: two leases, or a handover and its retry."""

Owners = dict[str, tuple[str, int]]


def fleet(agent: str, plan: FaultPlan) -> Settings:
    """Return the settings of an agent: twelve models, four of which compete for ten GPUs."""
    base = chaos_settings(agent, plan)
    pool = PoolKnobs("pool", "aggregated", 1, 1, 6, start_deadline_ms=30_000)
    models = tuple(
        ModelKnobs(
            name,
            (replace(pool, accelerator="gpu" if name in LIMITED else ""),),
            planner="hpa",
            guardrails=base.models[1].guardrails,
            planner_knobs={"hpa": base.models[1].knobs},
        )
        for name in MODELS
    )
    return replace(base, models=models, allocation=AllocationKnobs({"gpu": GPUS}), quotas={})


class SharedWorld(ChaosWorld):
    """World without faults, whose agents share the models; the invariants are checked."""

    def __init__(self, *names: str) -> None:
        super().__init__(FaultPlan(7, agents=0, shards=SHARDS), fleet)
        self.checker = InvariantChecker(self)
        self.start()
        for name in names:
            self.start_agent(name)
        self.run_for(SETTLED_MS)

    def run_for(self, ms: float) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ms + ms)

    def owners(self) -> Owners:
        """Return the agent that leads each model, and its epoch; models without a leader are left out."""
        found = {model: self.leaders_of(scope) for model, scope in self.scopes.items()}
        assert all(len(leaders) <= 1 for leaders in found.values())
        return {
            model: (leader.name, leader.controller.state.leadership.epoch)
            for model, leaders in found.items()
            for leader in leaders
        }

    def until(self, condition: Callable[[], bool], within_ms: float) -> float:
        """Return the time in ms until a condition holds."""
        began = self.timeline.now_ms
        while not condition():
            assert self.timeline.now_ms - began < within_ms, self.owners()
            self.run_for(50.0)
        return self.timeline.now_ms - began

    def led_by(self, names: Sequence[str]) -> bool:
        """Return True if all models are led, by these agents only."""
        owners = self.owners()
        return owners.keys() == set(MODELS) and {agent for agent, _ in owners.values()} <= set(names)

    def limited_gpus(self) -> int:
        """Return the limited GPUs that the newest decisions use."""
        entries = [self.store.keys.get(Keys("default").decision(model)) for model in LIMITED]
        decisions = [decode_decision(entry.value) for entry in entries if entry is not None]
        return sum(t.replicas for one in decisions if not isinstance(one, Rejected) for t in one.targets)

    def check(self) -> None:
        """Assert that no invariant was broken."""
        assert self.checker.findings.first is None


def moved_from(agent: str, before: Owners, after: Owners) -> bool:
    """Return True if only the models of an agent have new terms, which other agents lead."""
    return after.keys() == before.keys() and all(
        (after[model][0] != agent and after[model][1] > epoch) if owner == agent else after[model] == (owner, epoch)
        for model, (owner, epoch) in before.items()
    )


def test_agents_share_the_models_out() -> None:
    world = SharedWorld("a", "b", "c")
    assert world.led_by("abc")
    assert {agent for agent, _ in world.owners().values()} == set("abc")
    assert len({world.owners()[model] for model in LIMITED}) == 1, "one agent decides the limited GPUs"
    world.check()


def test_an_agent_follows_only_the_reports_of_its_models() -> None:
    world = SharedWorld("a", "b", "c")
    owners = world.owners()
    for agent in world.agents.values():
        state = agent.controller.state
        assert state.followed == (sorted(state.fleet.models) if agent.controller.leading else [])
        for model in state.fleet.models.values():
            heard = {worker.seen_at_ms >= 0 for pool in model.pools.values() for worker in pool.workers.values()}
            assert True in heard or owners[model.name][0] != agent.name


@pytest.mark.parametrize("way", ["killed", "suspended", "cut off from etcd"])
def test_the_models_of_an_agent_that_dies_are_led_after_its_lease(way: str) -> None:
    world = SharedWorld("a", "b", "c")
    before = world.owners()
    agents = world.process_of(before["m0"][0])
    if way == "killed":
        world.kill_agent(agents[0])
    for agent in agents:
        if way == "suspended":
            agent.suspend(world.timeline.now_ms + 60_000.0)
        elif way == "cut off from etcd":
            agent.store.set_partitioned(partitioned=True)
    name = agents[0].name

    def taken_over() -> bool:
        led = [one for one in world.agents.values() if one.controller.leading and one.name != name]
        models = {model for one in led for model in one.controller.state.fleet.models}
        return models == set(MODELS)

    world.until(taken_over, TTL_MS + 2_000.0)
    terms = {
        model: (one.name, one.controller.state.leadership.epoch)
        for one in world.agents.values()
        if one.controller.leading and one.name != name
        for model in one.controller.state.fleet.models
    }
    assert moved_from(name, before, terms)
    world.check()


def test_an_agent_that_stops_hands_its_models_over_within_a_second() -> None:
    world = SharedWorld("a", "b", "c")
    before = world.owners()
    (leaver, *_) = world.process_of(before["m0"][0])
    world.stop_agent(leaver)
    world.until(lambda: moved_from(leaver.name, before, world.owners()), 1_000.0)
    world.check()


def test_an_agent_that_joins_gets_its_models_only() -> None:
    world = SharedWorld("a", "b")
    before = world.owners()
    world.start_agent("c")
    world.run_for(SETTLED_MS)
    after = world.owners()
    assert after.keys() == set(MODELS)
    assert {agent for agent, _ in after.values()} == set("abc")
    assert all(after[model] == owner for model, owner in before.items() if after[model][0] != "c")
    world.check()


def test_an_agent_without_nats_leads_nothing_and_blocks_nobody() -> None:
    world = SharedWorld("a", "b", "c")
    name = world.owners()["m0"][0]
    for agent in world.process_of(name):
        agent.bus.set_partitioned(partitioned=True)
    world.until(lambda: world.led_by([one for one in "abc" if one != name]), 30_000.0)
    owners = world.owners()
    world.run_for(120_000.0)
    assert world.owners() == owners
    for agent in world.process_of(name):
        agent.bus.set_partitioned(partitioned=False)
    world.until(lambda: name in {agent for agent, _ in world.owners().values()}, 60_000.0)
    world.check()


def test_limited_gpus_are_never_exceeded_while_models_change_hands() -> None:
    world = SharedWorld("a", "b", "c")
    for model in MODELS:
        world.demand[model, "pool"] = 5.0
    for name in ("a", "b", "c", "a"):
        world.run_for(20_000.0)
        for agent in world.process_of(name)[:1]:
            world.stop_agent(agent)
        world.run_for(15_000.0)
        world.restart_agent(name)
        assert world.limited_gpus() <= GPUS
    world.run_for(SETTLED_MS)
    assert world.led_by("abc")
    world.check()


def test_agents_with_other_shards_wait_until_the_former_have_left() -> None:
    world = SharedWorld("a", "b")
    plan, world.plan = world.plan, replace(world.plan, shards=1)
    single = world.start_agent("z")
    world.run_for(SETTLED_MS)
    assert not single.controller.leading
    for name in ("a", "b"):
        world.stop_agent(world.process_of(name)[0])
    world.until(lambda: single.controller.leading, 2_000.0)
    world.plan = plan
    world.run_for(SETTLED_MS)
    world.start_agent("a")
    world.run_for(SETTLED_MS)
    assert single.controller.leading
    assert not any(one.controller.leading for one in world.process_of("a"))
    world.stop_agent(single)
    world.until(lambda: world.led_by(["a"]), 2_000.0)


@pytest.mark.parametrize("seed", [3, 47])
def test_shared_models_keep_the_invariants_under_faults(seed: int) -> None:
    assert run_plan(seed, 0.5, replace(draw(seed, 0.5), shards=4)).violation is None
