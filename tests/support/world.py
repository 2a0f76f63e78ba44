"""A small world in virtual time around real controllers: a store, a bus, workers and a scaler, all of which fail.

Everything comes from one seed. What the agents do is watched by the test through ``Agent.on_effect``.
"""

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import Raw

from loadline.core import events as ev
from loadline.core.belief.fleet import FleetKnobs
from loadline.core.belief.pool import PoolKnobs
from loadline.core.controller import Controller
from loadline.core.decisions.drains import DrainKnobs
from loadline.core.decisions.leadership import LeadershipKnobs
from loadline.core.decisions.ledger import DecisionKnobs
from loadline.core.effects import (
    AnnounceDecision,
    AnyEffect,
    Campaign,
    CommitDecision,
    ReadDecisions,
    RenewLease,
    Resign,
    RevokeWorkerLease,
    SendDrain,
)
from loadline.core.observed import WorkerRecord, WorkerSample
from loadline.core.planning.guard import GuardKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.settings import ModelKnobs, Settings
from loadline.core.targets import ApplyStatus, Decision
from loadline.runtime import record
from tests.support.virtual import Store, Timeline

START = 1_700_000_000_000
SPACING_MS = 200
REPORT_MS = 1_000


def settings(agent: str) -> Settings:
    """Two models under quick rails, one of them with a budget; every span a few seconds, so that much happens."""
    guard = GuardKnobs(step_up_max=2, stabilisation_ms=8_000, warm_up_ms=6_000, cooldown_down_ms=2_000)
    threshold = ThresholdKnobs(
        metric_pulling_interval_ms=500, adjustment_interval_ms=4_000, new_decode_worker_grace_intervals=1
    )
    pools = (
        PoolKnobs("prefill", "prefill", 1, 1, 5, start_deadline_ms=30_000),
        PoolKnobs("decode", "decode", 2, 1, 5, start_deadline_ms=30_000),
    )
    both = (PoolKnobs("both", "aggregated", replicas_min=2, replicas_max=6, start_deadline_ms=30_000),)
    return Settings(
        agent,
        "all",
        (
            ModelKnobs("m", pools, gpu_budget_max=11, guard=guard, threshold=threshold),
            ModelKnobs("n", both, gpu_budget_min=3, guard=guard, threshold=threshold),
        ),
        fleet=FleetKnobs(stale_after_ms=3_000),
        leadership=LeadershipKnobs(blind_after_ms=8_000),
        decisions=DecisionKnobs(ttl_ms=40_000, retry_backoff_ms=1_000, retry_backoff_max_ms=10_000),
        drain=DrainKnobs(ttl_ms=25_000),
    )


class Agent:
    """A controller with an inbox and a journal; ``paused_until`` and ``alive`` are what happens to its process."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.controller = Controller(settings(name))
        self.inbox: list[ev.AnyEvent] = []
        self.segments: list[list[bytes]] = []
        self.paused_until = 0
        self.alive = True
        self.scheduled = -1
        self.turns = 0
        self.registry_at = 0

    def put(self, event: ev.AnyEvent) -> None:
        """Something for the next turn."""
        if self.alive:
            self.inbox.append(event)
            self.wake(self.world.now + SPACING_MS)

    def wake(self, at: int) -> None:
        """Turn at that time, or when the process goes on."""
        at = max(at, self.world.now, self.paused_until)
        if self.alive and (self.scheduled < 0 or at < self.scheduled):
            self.scheduled = at
            self.world.at(at, lambda: self._turn_at(at))

    def _turn_at(self, at: int) -> None:
        if at == self.scheduled and self.alive:
            self.scheduled = -1
            if self.paused_until > self.world.now:
                self.wake(self.paused_until)
            else:
                self.turn()

    def begin_segment(self) -> None:
        """What the journal asks for when a segment is full."""
        snapshot = Raw(self.controller.snapshot())
        going_on = bool(self.segments)
        start = record.Start(record.FORMAT, "0", self.world.now, going_on, self.controller.settings, snapshot)
        self.segments.append([record.encode(start)])

    def turn(self) -> None:
        """What the runtime does in a turn."""
        now, events, self.inbox = self.world.now, self.inbox, []
        if not self.segments or self.world.chance(0.002):
            self.begin_segment()
        journal = self.segments[-1]
        journal.append(record.encode(record.Turn(now, events)))
        self.world.before_turn(self, events)
        effects = self.controller.handle(events, now)
        self.turns += 1
        if effects:
            journal.append(record.encode(record.Effects(effects)))
        self.world.after_turn(self, effects)
        for effect in effects:
            self.world.perform(self, effect)
        wake = self.controller.next_wake()
        if wake is not None:
            self.wake(max(wake, now + 1))


class Worker:
    """An engine: it starts, reports, drains and dies."""

    def __init__(self, world: "World", model: str, pool: PoolKnobs, name: str) -> None:
        self.world = world
        self.record = WorkerRecord(model, pool.name, name, pool.role, world.now, "starting")
        self.lease = 0
        self.alive = True
        self.mute_until = 0
        self.draining = self.drained = False
        self.leave_by: int | None = None
        self.sequence = 0
        if not world.chance(0.04):  # else it never comes up
            world.after(world.rng.randint(500, 12_000), self.register)

    def register(self) -> None:
        if self.alive and self.record.state == "starting":
            if self.lease:
                self.record = msgspec.structs.replace(self.record, state="ready")
                self.write()
            elif self.write():
                self.world.after(self.world.rng.randint(100, 3_000), self.register)
                self.beat()
            else:
                self.world.after(1_000, self.register)

    def write(self) -> bool:
        """Register, or change the record."""
        self.lease = self.world.store.put_worker(self.record, self.lease) or self.lease
        return self.lease > 0

    def beat(self) -> None:
        """Report, and keep the lease: the two things that a living process does all the time."""
        if not self.alive:
            return
        world = self.world
        world.after(REPORT_MS, self.beat)
        if world.store.keep(self.lease) is False and not self.draining:
            self.write()
        if self.drained:
            world.publish(ev.WorkerDrained(*self.identity, self.record.incarnation))
        if self.record.state == "starting" or world.now < self.mute_until:
            return
        self.sequence += 1
        kv, waiting = world.load_of(self)
        sample = WorkerSample(self.sequence, world.now, kv_usage_ratio=kv, waiting_requests=waiting, running_requests=1)
        world.publish(ev.LoadReported(*self.identity, self.record.incarnation, [sample]))

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.record.model, self.record.pool, self.record.worker

    def drain(self) -> bool | None:
        """Answer a drain command."""
        if not self.alive or self.world.chance(0.05):
            return None
        if self.world.chance(0.05):
            return False
        self.draining = True
        if self.record.role != "prefill":
            self.world.store.revoke(self.lease)
        if not self.world.chance(0.1):  # else it hangs

            def finish() -> None:
                self.drained = True

            self.world.after(self.world.rng.randint(500, 15_000), finish)
        return True


class Scaler:
    """Obeys the newest decision; in its moods it is slow, says nothing, lies or refuses."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.mood = "good"
        self.newest: dict[str, Decision] = {}
        self.count = 0

    def hear(self, decision: Decision, expires_at: int) -> None:
        known = self.newest.get(decision.model)
        if known is not None and (decision.epoch, decision.sequence) < (known.epoch, known.sequence):
            return
        if self.world.now >= expires_at:
            return
        self.newest[decision.model] = decision
        if self.mood == "mute":
            return
        self._answer(decision, "refused" if self.mood == "refuses" else "accepted")
        if self.mood == "lies":
            self._answer(decision, "done")

    def _answer(self, decision: Decision, status: ApplyStatus) -> None:
        self.world.publish(
            ev.DecisionAnswered(
                decision.decision_id, decision.model, decision.epoch, decision.sequence, "s", status, {}
            )
        )

    def work(self) -> None:
        """Compare what there is with what should be."""
        self.world.after(1_000 if self.mood == "good" else 6_000, self.work)
        if self.mood in {"refuses", "lies"}:
            return
        for model, decision in self.newest.items():
            reached = True
            for target in decision.targets:
                here = [w for w in self.world.living if w.identity[:2] == (model, target.pool)]
                victims = {victim.worker: victim.incarnation for victim in target.victims}
                for worker in here:
                    if worker.leave_by is None and victims.get(worker.record.worker) == worker.record.incarnation:
                        worker.leave_by = self.world.now + decision.drain_ttl_ms
                    if worker.leave_by is not None and (worker.drained or self.world.now >= worker.leave_by):
                        worker.alive = False
                staying = [worker for worker in here if worker.leave_by is None]
                reached = reached and len(staying) == target.replicas
                for _ in range(target.replicas - len(staying)):
                    self.count += 1
                    self.world.start(model, target.pool, f"w{self.count}")
            if reached and self.mood == "good":
                self._answer(decision, "done")


class World(Timeline):
    """All of it. ``before_turn`` and ``after_turn`` are for whoever watches."""

    def __init__(self, seed: int, agents: int = 2) -> None:
        super().__init__(seed, START)
        self.bus_up = True
        self.demand = {"prefill": 1.5, "decode": 1.5, "both": 2.0}
        self.before_turn: Callable[[Agent, list[ev.AnyEvent]], None] = lambda _agent, _events: None
        self.after_turn: Callable[[Agent, list[AnyEffect]], None] = lambda _agent, _effects: None
        self.agents: list[Agent] = []
        self.store = Store(self, self.agents)
        self.scaler = Scaler(self)
        self.gone: list[Agent] = []
        self.workers: list[Worker] = []
        for number in range(agents):
            self.join(f"agent-{number}")
        self.store.expire()
        self.scaler.work()

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def living(self) -> list[Worker]:
        self.workers = [worker for worker in self.workers if worker.alive]
        return self.workers

    def join(self, name: str) -> Agent:
        """A process starts."""
        agent = Agent(self, name)
        self.agents.append(agent)
        if self.bus_up:
            agent.put(ev.BusConnectionChanged(connected=True))
        if self.store.up:
            self.store.show(agent)
        agent.wake(self.now)
        return agent

    def kill(self, agent: Agent) -> None:
        agent.alive = False
        self.agents.remove(agent)
        self.gone.append(agent)

    def start(self, model: str, pool: str, name: str) -> None:
        knobs = next(p for m in settings("x").models if m.name == model for p in m.pools if p.name == pool)
        self.workers.append(Worker(self, model, knobs, name))

    def load_of(self, worker: Worker) -> tuple[float, int]:
        pool = worker.record.pool
        serving = sum(w.record.pool == pool and w.record.state == "ready" for w in self.living)
        busy = self.demand[pool] / max(1, serving)
        return min(1.0, busy), int(self.rng.random() < busy * busy) + 3 * int(busy > 1)

    def set_bus(self, *, up: bool) -> None:
        self.bus_up = up
        for agent in self.agents:
            agent.put(ev.BusConnectionChanged(connected=up))

    def set_store(self, *, up: bool) -> None:
        self.store.up = up
        for agent in self.agents:
            if up:
                self.store.show(agent)
            else:
                agent.put(ev.StoreConnectionChanged(connected=False))

    # -- the bus -------------------------------------------------------------------------------------------------------

    def publish(self, event: ev.AnyEvent) -> None:
        """To every agent; frames are lost, doubled and late, so they overtake each other."""
        for agent in self.agents:
            self._deliver(partial(agent.put, event))

    def _deliver(self, do: Callable[[], object]) -> None:
        if not self.bus_up or self.chance(0.02):
            return
        self.after(self.rng.randint(1, 1_500) if self.chance(0.03) else 5, do)
        if self.chance(0.02):
            self.after(self.rng.randint(1, 3_000), do)

    # -- effects -------------------------------------------------------------------------------------------------------

    def perform(self, agent: Agent, effect: AnyEffect) -> None:
        store = self.store
        match effect:
            case Campaign():
                self._ask(agent, lambda: store.campaign(effect, agent.name), self._lose_campaign(effect))
            case RenewLease(scope=scope, lease_id=lease):
                ttl_ms = agent.controller.settings.leadership.lease_ttl_s * 1_000
                lost = ev.LeaseRenewalFailed(scope, lease, lost=False)
                self._ask(agent, lambda: store.renew(effect, ttl_ms), lambda _answer: lost)
            case Resign(lease_id=lease) | RevokeWorkerLease(lease_id=lease):
                self.after(5, lambda: store.revoke(lease))
            case ReadDecisions(request=request):
                self._ask(agent, lambda: store.read(effect), lambda _answer: ev.DecisionsUnread(request, "slow"))
            case CommitDecision(decision=decision):
                unknown = ev.CommitUnknown(decision.decision_id, decision.model)
                self._ask(agent, lambda: store.commit(effect), lambda _answer: unknown)
            case AnnounceDecision(decision=decision, ttl_ms=ttl_ms):
                expires_at = self.now + ttl_ms
                self._deliver(lambda: self.scaler.hear(decision, expires_at))
            case SendDrain():
                self._send_drain(agent, effect)

    def _ask(
        self, agent: Agent, do: Callable[[], ev.AnyEvent], lose: Callable[[ev.AnyEvent | None], ev.AnyEvent]
    ) -> None:
        """Ask the store. An answer that is lost comes as an error: before the deed is done, after it, or without it."""
        slow = self.chance(0.05)
        there_ms, back_ms = self.rng.randint(1, 6_000 if slow else 30), self.rng.randint(1, 3_000 if slow else 30)
        landed: list[ev.AnyEvent] = []
        if not self.chance(0.06):
            self.after(there_ms, lambda: self.after(back_ms, partial(agent.put, do())))
            return
        if self.rng.random() < 0.7:
            self.after(there_ms, lambda: landed.append(do()))
        self.after(self.rng.randint(1, 2_000), lambda: agent.put(lose(landed[0] if landed else None)))

    def _lose_campaign(self, effect: Campaign) -> Callable[[ev.AnyEvent | None], ev.AnyEvent]:
        def lose(answer: ev.AnyEvent | None) -> ev.AnyEvent:
            if isinstance(answer, ev.LeadershipWon):
                self.store.revoke(answer.lease_id)
            return ev.CampaignLost(effect.scope, "")

        return lose

    def _send_drain(self, agent: Agent, effect: SendDrain) -> None:
        heard = self.bus_up and not self.chance(0.05)
        worker = next((w for w in self.living if w.identity == (effect.model, effect.pool, effect.worker)), None)
        accepted = worker.drain() if worker and heard and worker.record.incarnation == effect.incarnation else None
        answer = ev.DrainAnswered(effect.model, effect.pool, effect.worker, effect.drain_id, accepted)
        self.after(10 if accepted is not None else 1_000, lambda: agent.put(answer))
