"""Controllers in a world where everything fails, and what must hold all the same."""

from functools import partial
from itertools import pairwise

import pytest

from loadline.core.belief.pool import Pool
from loadline.core.controller import Controller
from loadline.core.effects import AnnounceDecision, AnyEffect, CommitDecision, ReadDecisions
from loadline.core.events import AnyEvent, CommitUnknown, DecisionsRead, ShutdownRequested, WorkerDrained
from loadline.core.report import Code
from loadline.core.targets import Decision, PoolTarget
from loadline.runtime import record
from tests.support.world import START, Agent, World

SEEDS = 60
MINUTES = 4
MINUTE_MS = 60_000
HEAL_MS = 90_000


class Watch:
    """What is remembered of one agent, to judge what it does."""

    def __init__(self) -> None:
        self.proposals: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.quorate_since: dict[tuple[str, str], int] = {}
        self.acting_since = -1
        self.unknown: dict[str, tuple[str, int]] = {}
        """Model -> decision of unknown outcome, and the read that must be answered first; 0: not asked for yet."""
        self.stopping = False
        self.draining: dict[tuple[str, str, str], tuple[int, int]] = {}
        """Victim -> incarnation and deadline."""


class Judge:
    """The invariants. Every check names its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.watches: dict[int, Watch] = {}
        self.committed: list[Decision] = []
        self.decisions = 0
        world.before_turn = self.before_turn
        world.after_turn = self.after_turn

    def watch(self, agent: Agent) -> Watch:
        return self.watches.setdefault(id(agent), Watch())

    def before_turn(self, agent: Agent, events: list[AnyEvent]) -> None:
        watch = self.watch(agent)
        for event in events:
            if isinstance(event, CommitUnknown):
                pending = agent.controller.state.ledger.entry(event.model).pending
                if pending is not None and pending.decision_id == event.decision_id:  # else a read has shown it
                    watch.unknown[event.model] = (event.decision_id, 0)
            elif isinstance(event, DecisionsRead):
                for model, (_, asked) in list(watch.unknown.items()):
                    if 0 < asked <= event.request:
                        del watch.unknown[model]
            elif isinstance(event, ShutdownRequested):
                watch.stopping = True
            elif isinstance(event, WorkerDrained):
                watch.draining.pop((event.model, event.pool, event.worker), None)

    def after_turn(self, agent: Agent, effects: list[AnyEffect]) -> None:
        self.beliefs(agent.controller)
        for model, (unknown, _) in list(self.watch(agent).unknown.items()):
            stands = agent.controller.state.ledger.entry(model).decision
            if stands is not None and stands.decision_id == unknown:  # a read of the same turn has shown it
                del self.watch(agent).unknown[model]
        self.drains(agent)
        self.remember(agent)
        for effect in effects:
            match effect:
                case CommitDecision(decision=decision):
                    self.commit(agent, decision)
                case AnnounceDecision(decision=decision, ttl_ms=ttl_ms):
                    self.announcement(decision, ttl_ms)
                case ReadDecisions(request=request):
                    watch = self.watch(agent)
                    watch.unknown = {
                        model: (known, asked or request) for model, (known, asked) in watch.unknown.items()
                    }
        self.truth()

    # -- the store: I1, I2 ---------------------------------------------------------------------------------------------

    def truth(self) -> None:
        history = self.world.store.history
        if len(history) == self.decisions:
            return
        self.decisions = len(history)
        for model in ("m", "n"):
            numbers = [(d.epoch, d.sequence) for d in history if d.model == model]
            assert all(before < after for before, after in pairwise(numbers)), "I1, I2: order"
            assert len({sequence for _, sequence in numbers}) == len(numbers), "I1: a sequence twice"

    # -- a commit ------------------------------------------------------------------------------------------------------

    def commit(self, agent: Agent, decision: Decision) -> None:
        now, controller, watch = self.world.now, agent.controller, self.watch(agent)
        assert now < controller.state.leadership.deadline_ms, "I3: past the deadline"
        others = [a for a in self.world.agents if a is not agent and a.controller.state.leadership.may_commit(now)]
        assert not others, "I3: two agents may commit"
        assert decision.model not in watch.unknown, "I17: the outcome before is unknown"
        assert not watch.stopping, "I19: a commit after the request to stop"
        assert decision.reasons, "I18: no reason"
        assert controller.state.paused.get(decision.model) is None
        knobs = next(m for m in controller.settings.models if m.name == decision.model)
        pools = controller.state.fleet.models[decision.model].pools
        total = sum(t.replicas * pools[t.pool].knobs.gpus_per_worker for t in decision.targets)
        assert knobs.gpu_budget_max is None or total <= knobs.gpu_budget_max, "I4: GPU budget"
        assert total >= knobs.gpu_budget_min, "I4: least GPU budget"
        for target in decision.targets:
            pool, key = pools[target.pool], (decision.model, target.pool)
            assert pool.knobs.replicas_min <= target.replicas <= pool.knobs.replicas_max, "I4: bounds"
            forced = {f"{target.pool}:{code}" for code in (Code.REPLICAS_MIN, Code.GPU_BUDGET_MIN)}
            if not forced & set(decision.reasons):
                assert target.replicas <= target.previous + knobs.guard.step_up_max, "I5: step up"
            if target.replicas < target.previous and f"{target.pool}:{Code.GPU_BUDGET_MAX}" not in decision.reasons:
                self.shrink(watch, pool, key, target)
            leaving = {d.worker for d in controller.state.drains.open.values() if (d.model, d.pool) == key}
            assert leaving <= {victim.worker for victim in target.victims}, "I16: a victim is no longer named"

    def shrink(self, watch: Watch, pool: Pool, key: tuple[str, str], target: PoolTarget) -> None:
        now, previous, replicas = self.world.now, target.previous, target.replicas
        guard = self.world.agents[0].controller.settings.models[0].guard
        assert pool.quorate(0.8), "I6: a shrink without data"
        assert replicas >= min(previous, pool.base(now)) - guard.step_down_max, "I5: step down"
        held = watch.proposals[key]
        ends = [at for at, _ in held[1:]] + [now + 1]
        window = [count for (_, count), end in zip(held, ends, strict=True) if end > now - guard.stabilisation_ms]
        assert replicas >= min(previous, *window), "I8: below the highest proposal of the window"
        assert now - watch.acting_since >= guard.warm_up_ms, "I9: a shrink before warm-up"
        assert now - watch.quorate_since[key] >= guard.warm_up_ms, "I9: a shrink after a gap"

    def announcement(self, decision: Decision, ttl_ms: int) -> None:
        assert self.world.now < decision.expires_at_ms, "I15: announced after it expired"
        assert 0 < ttl_ms <= decision.expires_at_ms - decision.issued_at_ms, "I15: a ttl beyond the whole"
        assert decision in self.world.store.history, "announced before it was committed"

    # -- what is believed ----------------------------------------------------------------------------------------------

    def remember(self, agent: Agent) -> None:
        """What was proposed in this turn, and whether there was data: as the explanations and the pools say."""
        watch, state, now = self.watch(agent), agent.controller.state, self.world.now
        if state.acting_since_ms != watch.acting_since:
            watch.acting_since = state.acting_since_ms
            watch.proposals.clear()
            watch.quorate_since.clear()
        told = [e for e in [*state.explanations[-2:], *state.holds.values()] if e.at_ms == now]
        for explanation in told:
            said = explanation.rails or [reason for opinion in explanation.opinions for reason in opinion.reasons]
            assert said, "I18: a hold without a reason"
            if watch.acting_since < 0:
                continue
            for pool in state.fleet.models[explanation.model].pools.values():
                key = (explanation.model, pool.name)
                proposed = explanation.opinions[0].targets.get(pool.name, explanation.current[pool.name])
                watch.proposals.setdefault(key, []).append((now, proposed))
                del watch.proposals[key][:-400]
                if pool.quorate(0.8):
                    watch.quorate_since.setdefault(key, now)
                else:
                    watch.quorate_since[key] = now

    def beliefs(self, controller: Controller) -> None:
        state = controller.state
        workers = 0
        for model in state.fleet.models.values():
            for pool in model.pools.values():
                workers += len(pool.workers)
                load = pool.load
                numbers = (pool.ready, pool.starting, pool.late, pool.fresh, load.kv_micro, load.waiting, load.running)
                assert min(numbers) >= 0, "I13: a negative count"
                assert min(load.kv_known, load.queue_known, load.waiting_while_running) >= 0, "I13: a negative count"
        assert state.fleet.workers == workers, "I14: workers are miscounted"
        assert len(state.explanations) <= 256, "I14"
        assert len(state.drains.finished) <= 256, "I14"
        assert len(state.ledger.live) <= len(controller.settings.models), "I14"
        assert all(e.pending is None or e.pending.sequence == e.sequence for e in state.ledger.entries.values())

    def drains(self, agent: Agent) -> None:
        watch, state, now = self.watch(agent), agent.controller.state, self.world.now
        if not agent.controller.leading:
            assert not state.drains.open, "a follower drains nobody"
            watch.draining.clear()
            return
        for drain in state.drains.open.values():
            worker = state.fleet.models[drain.model].pools[drain.pool].workers.get(drain.worker)
            assert worker is not None, "I16: a draining worker is not listed"
            assert worker.draining, "I16: a draining worker counts as supply"
            watch.draining[drain.model, drain.pool, drain.worker] = (drain.incarnation, drain.deadline_ms)
        for (model, pool, name), (incarnation, deadline) in list(watch.draining.items()):
            if f"{model}\0{pool}\0{name}" not in state.drains.open:
                del watch.draining[model, pool, name]
                there = state.fleet.models[model].pools[pool].workers.get(name)
                another = there is None or there.record.incarnation != incarnation
                endings = [f.ending for f in state.drains.finished if f.worker == name]
                assert now >= deadline or (another and "died" in endings[-2:]), "I16: closed before its time"


class Faults:
    """What goes wrong, each some times at some moment."""

    def __init__(self, world: World, until: int) -> None:
        self.world, self.rng = world, world.rng
        some = self.rng.randint(0, 2)
        counts = {"bus": some, "store": some, "pause": some, "restart": some, "mood": some, "stop": 1}
        for name, count in (counts | {"death": 4, "silence": 4, "demand": 12}).items():
            for _ in range(count):
                world.at(self.rng.randint(START + 10_000, until), getattr(self, name))

    def bus(self) -> None:
        self.world.set_bus(up=False)
        self.world.after(self.rng.choice([500, 5_000, 30_000]), lambda: self.world.set_bus(up=True))

    def store(self) -> None:
        self.world.set_store(up=False)
        self.world.after(self.rng.choice([500, 5_000, 30_000]), lambda: self.world.set_store(up=True))

    def pause(self) -> None:
        for agent in self.world.agents[:1]:
            agent.paused_until = self.world.now + self.rng.choice([1_000, 9_000, 20_000])

    def restart(self) -> None:
        for agent in self.rng.sample(self.world.agents, min(1, len(self.world.agents))):
            self.world.kill(agent)
            self.world.after(self.rng.randint(100, 15_000), partial(self.world.join, agent.name))

    def stop(self) -> None:
        for agent in self.world.agents[:1]:
            agent.put(ShutdownRequested())
            self.world.after(10_000, partial(self._begin_again, agent))

    def _begin_again(self, agent: Agent) -> None:
        if agent.alive:
            self.world.kill(agent)
            self.world.join(agent.name)

    def death(self) -> None:
        for worker in self.rng.sample(self.world.living, min(1, len(self.world.living))):
            worker.alive = False

    def silence(self) -> None:
        for worker in self.rng.sample(self.world.living, min(1, len(self.world.living))):
            worker.mute_until = self.world.now + self.rng.randint(1_000, 20_000)

    def mood(self) -> None:
        self.world.scaler.mood = self.rng.choice(["slow", "mute", "lies", "refuses"])
        self.world.after(self.rng.randint(2_000, 50_000), lambda: setattr(self.world.scaler, "mood", "good"))

    def demand(self) -> None:
        pool = self.rng.choice(sorted(self.world.demand))
        self.world.demand[pool] = self.rng.choice([0.1, 0.7, 1.5, 2.5, 3.5, 6.0])


def heal(world: World) -> None:
    world.calm = True
    world.scaler.mood = "good"
    world.set_bus(up=True)
    world.set_store(up=True)
    for agent in world.agents:
        agent.paused_until = 0
        agent.wake(world.now)


def play(seed: int, minutes: int = MINUTES) -> tuple[World, Judge]:
    world = World(seed, agents=1 + seed % 3 % 2)
    judge = Judge(world)
    until = START + minutes * MINUTE_MS
    Faults(world, until)
    world.run(until + 31_000)
    heal(world)
    world.run(until + 31_000 + HEAL_MS)
    return world, judge


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_invariants_hold(seed: int) -> None:
    world, _ = play(seed)
    leaders = [agent for agent in world.agents if agent.controller.leading]
    assert len(leaders) == 1, "L1: one leader once everything is well"
    assert world.store.history, "nothing was ever decided"
    for agent in [*world.agents, *world.gone]:
        found = record.replay((f"segment {n}", segment) for n, segment in enumerate(agent.segments))
        assert found.difference == "", "I11: replay"
        for begin in range(1, len(agent.segments)):
            found = record.replay((f"segment {n}", s) for n, s in enumerate(agent.segments[begin:], begin))
            assert found.difference == "", "I11: replay from any segment"
