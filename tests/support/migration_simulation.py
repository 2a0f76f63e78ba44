"""Small fleet in virtual time for figures of migration: the production agent, simulated engines and a frontend.

An iteration takes 10 ms and, in general, 1 ms for each request in it; the objective is 50 ms, and the agent knows both.
A separate worker computes prompts in almost no time, so that the figures depend on decode alone.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from loadline.client.handover.messages import ClaimReply, ClaimRequest
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.engines.tpot import TpotSweep
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.effects import AnyEffect, SendMigrate
from loadline.core.vocabulary.events import AnyEvent
from loadline.core.vocabulary.migrations import Migration
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.sim.engine import SimulatedEngine
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPoolKnobs, pools_of
from loadline.sim.profiles import LinearProfile
from loadline.sim.serving.frontend import SimulatedFrontend
from loadline.sim.serving.request_log import RequestLog
from loadline.sim.serving.routing import RoutedWorker, least_loaded
from loadline.sim.world.agent import SimulatedAgent, TurnObserver
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.migration import HandoverKnobs
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.sim.world.worker import SimulatedWorker, SimulatedWorkerKnobs
from loadline.traces import Arrival
from loadline.wire.subjects import Subjects

ITL_MS: Final = 50.0
ALPHA_MS: Final = 10.0
BATCH_MAX: Final = 256
PACKED_MAX: Final = 31
"""Requests that packed routing gives to a worker: one more exceeds 0.85 of the objective."""
WARM_MS: Final = 3_000.0
"""Time by which the agent leads and all workers have reported."""
ISL_TOKENS: Final = (100, 900)
OSL_TOKENS: Final = 200.0
_OSL_MAX: Final = 2_000
POOLS: Final = (
    PoolKnobs("prefill", "prefill", replicas_max=8),
    PoolKnobs("decode", "decode", replicas_max=256),
)
ALL_POLICIES: Final = MigrationKnobs(
    enabled=True,
    policies=(
        "decode_load",
        "prefill_failover",
        "decode_failover",
        "binpacking_mitigation",
        "binpacking_consolidation",
    ),
    decode_load_threshold=0.9,
    load_balance_threshold=0.2,
)
"""All policies of decode workers."""

Route = Callable[[Sequence[RoutedWorker], Arrival, int], RoutedWorker]


class Phase(NamedTuple):
    """Time span with a steady arrival rate."""

    seconds: float
    per_s: float


class SentCommand(NamedTuple):
    """A migrate command."""

    at_ms: float
    migration: Migration


class Hop(NamedTuple):
    """Change of the owner of a request."""

    request_id: str
    source: str
    destination: str
    at_ms: float


class MigrationScenarioKnobs(Struct, frozen=True):
    """Fleet of a scenario."""

    workers: int = 6
    slots: int = 1
    """Migration slots of a worker, in and out."""
    copy_ms: tuple[float, float] = (400.0, 1_000.0)
    """Range of the duration of a migration."""
    migration_knobs: MigrationKnobs = ALL_POLICIES
    beta_ms: float = 1.0
    """Time that each request adds to an iteration."""
    kv_blocks: int = 4_000
    units_of: int = 0
    """Workers per unit, each with one rank; 0: no units."""
    route: Route = least_loaded
    seed: int = 0


class _CopyDuration(Struct, frozen=True):
    copying_ms: float
    downtime_ms: float = 0.0


class _RecordingFrontend(SimulatedFrontend):
    """Frontend that records each change of owner."""

    hops: list[Hop]

    def _answer_claim(self, claim: ClaimRequest) -> ClaimReply:
        before = self._owners.owner(claim.request_id)
        reply = super()._answer_claim(claim)
        if reply.granted and before is not None and before.worker != claim.worker:
            self.hops.append(Hop(claim.request_id, before.worker, claim.worker, self._timeline.now_ms))
        return reply


class MigrationScenarioWorker(SimulatedWorker):
    """Worker that can report itself as unschedulable, and can have several ranks."""

    schedulable = True

    def sampled(self) -> list[WorkerSample]:
        """Return its samples; the first rank has all requests."""
        first = replace(self.migration.with_slots(self.engine.load()), schedulable=self.schedulable)
        ranks = range(1, self.record.data_parallel_size)
        idle = WorkerSample(0, 0, kv_blocks_used=0, kv_blocks_total=1, waiting_requests=0, running_requests=0)
        return [first, *(replace(idle, rank=rank, decode_tokens=0) for rank in ranks)]

    def _report(self) -> None:
        if self._timeline.now_ms >= self.silent_until_ms:
            report = self._incarnation.report(self.sampled(), START_MS + int(self._timeline.now_ms))
            self._publish(self._load_subject, report)


class MigrationSimulation(TurnObserver):
    """Fleet after a warm-up of 3 s. Times in virtual ms since its start.

    Args:
        knobs: Fleet of the scenario.
    """

    def __init__(self, knobs: MigrationScenarioKnobs) -> None:
        self.knobs = knobs
        self.timeline = Timeline(knobs.seed)
        self.bus, self.store = VirtualBus(self.timeline), VirtualStore(self.timeline)
        self.commanded: list[SentCommand] = []
        self.hops: list[Hop] = []
        self.served = RequestLog()
        self.busy: list[int] = []
        """Number of decode workers with requests, by second of load."""
        model = _model(knobs)
        fleet = SimulatedFleetKnobs((_pool_fleet(knobs, "prefill", 1), _pool_fleet(knobs, "decode", knobs.workers)))
        self._pools = pools_of(fleet, model)
        self.gateway = _RecordingFrontend(
            self.timeline,
            "m",
            self._pools,
            fleet,
            self.bus.connection(),
            objectives=model.effective_objectives,
            served=self.served,
        )
        self.gateway.hops = self.hops
        self.gateway._routing_policy = knobs.route
        self._copy_rng = self.timeline.rng("copy")
        self._arrival_rng = self.timeline.rng("arrivals")
        self.prefill = self._worker("prefill", 0)
        self.decode = {f"decode-{n:02}": self._worker("decode", n) for n in range(knobs.workers)}
        self.agent = SimulatedAgent(
            self.timeline,
            Settings("agent", "all", (model,), tpot_profiles={"m": _tpot(knobs)}),
            self.bus.connection(),
            self.store.connection(),
            observer=self,
        )
        self.timeline.run_until(WARM_MS)

    def after_turn(
        self, agent: SimulatedAgent, events: Sequence[AnyEvent], effects: Sequence[AnyEffect], now: int
    ) -> None:
        """Record the migrate commands of a turn."""
        del agent, events, now
        self.commanded += [
            SentCommand(self.timeline.now_ms, one.migration) for one in effects if isinstance(one, SendMigrate)
        ]

    # -- events --------------------------------------------------------------------------------------------------------

    def advance(self, wait_ms: float) -> None:
        """Advance the time."""
        self.timeline.run_until(self.timeline.now_ms + wait_ms)

    def advance_until(self, condition: Callable[[], bool], timeout_ms: float) -> float:
        """Advance the time until a condition holds, checked every 10 ms; return the time that passed."""
        began_ms = self.timeline.now_ms
        while not condition() and self.timeline.now_ms < began_ms + timeout_ms:
            self.advance(10.0)
        return self.timeline.now_ms - began_ms

    def run_load(self, *phases: Phase) -> None:
        """Run phases of Poisson arrivals one after the other."""
        began_ms, rng = self.timeline.now_ms, self._arrival_rng
        for phase in phases:
            at_ms = began_ms
            while (at_ms := at_ms + rng.expovariate(phase.per_s) * 1_000.0) < began_ms + phase.seconds * 1_000.0:
                osl = min(2 + int(rng.expovariate(1.0 / OSL_TOKENS)), _OSL_MAX)
                self.timeline.call_at(at_ms, partial(self.gateway.submit, Arrival(0.0, rng.randint(*ISL_TOKENS), osl)))
            began_ms += phase.seconds * 1_000.0
        while self.timeline.now_ms < began_ms:
            self.advance(1_000.0)
            self.busy.append(sum(bool(worker.held) for worker in self.decode.values()))

    def start_requests(self, count: int, *names: str, isl_tokens: int = 500, osl_tokens: int = 10_000) -> None:
        """Start ``count`` requests at each of these workers and advance by 0.5 s."""
        route, self.gateway._routing_policy = self.gateway._routing_policy, _in_rotation(names)
        for _ in range(count * len(names)):
            self.gateway.submit(Arrival(0.0, isl_tokens, osl_tokens))
        self.advance(500.0)
        self.gateway._routing_policy = route

    def drain(self, name: str) -> None:
        """Request the drain of a worker."""
        self.agent.inbox.put(ev.DrainRequested("m", "decode", name, "toy"))

    def ignore_commands(self, name: str) -> None:
        """Let a worker never answer a migrate command."""

        async def ignore(_payload: bytes) -> None:
            return None

        self.bus.answer(self.decode[name].bus, Subjects("loadline").migrate("m", "decode", name), ignore)

    # -- results -------------------------------------------------------------------------------------------------------

    def commands(self) -> Counter[str]:
        """Return the number of commands by outcome and reason."""
        found: Counter[str] = Counter()
        for name, count in self.agent.controller.state.fleet.models["m"].migration.tally.commands.items():
            found[name.partition(":")[2]] += count
        return found

    def refused_share(self) -> float:
        """Return the fraction of commands that their source or destination refused."""
        found = self.commands()
        refused = sum(n for name, n in found.items() if name.startswith("refused") or "destination_refused" in name)
        return refused / max(found["planned"], 1)

    def rebounds(self, within_ms: float = 10_000.0) -> list[tuple[Hop, Hop]]:
        """Return the pairs of hops that bring a request back within this time."""
        found: list[tuple[Hop, Hop]] = []
        left: dict[tuple[str, str], Hop] = {}
        for hop in self.hops:
            before = left.get((hop.request_id, hop.destination))
            if before is not None and hop.at_ms - before.at_ms <= within_ms:
                found.append((before, hop))
            left[hop.request_id, hop.source] = hop
        return found

    def reversals(self, within_ms: float = 10_000.0) -> int:
        """Return the number of commands that reverse another one within this time."""
        return sum(
            any(
                (one.migration.source, one.migration.destination) == (two.migration.destination, two.migration.source)
                and 0.0 < one.at_ms - two.at_ms <= within_ms
                for two in self.commanded
            )
            for one in self.commanded
        )

    # -- workers -------------------------------------------------------------------------------------------------------

    def _worker(self, pool: str, number: int) -> MigrationScenarioWorker:
        pool_knobs = self._pools[pool]
        units = self.knobs.units_of if pool == "decode" else 0
        record = WorkerRecord(
            "m",
            pool,
            f"{pool}-{number:02}",
            pool_knobs.role,
            START_MS,
            unit=f"unit-{number // units}" if units else "",
            data_parallel_size=units or 1,
            kv_blocks_total=pool_knobs.engine.kv_blocks_total,
            block_size_tokens=pool_knobs.engine.block_size_tokens,
        )
        handovers = HandoverKnobs(self._copy, self.knobs.slots, self.knobs.slots)
        return MigrationScenarioWorker(
            self.timeline,
            record,
            SimulatedEngine(pool_knobs.engine, pool_knobs.timing),
            self.bus.connection(),
            self.store.connection(),
            peers=self.bus.connection(),
            knobs=SimulatedWorkerKnobs(handovers=handovers),
            on_event=self.gateway.on_engine_event,
            on_change=self.gateway.on_worker_changed,
        )

    def _copy(self, _tokens: float, _tokens_per_ms: float) -> _CopyDuration:
        return _CopyDuration(self._copy_rng.uniform(*self.knobs.copy_ms))


def fullest_within_objective(workers: Sequence[RoutedWorker], _arrival: Arrival, _chosen: int) -> RoutedWorker:
    """Return the fullest worker that stays within the objective, or else the emptiest one."""
    fitting = [one for one in workers if len(one.requests) < PACKED_MAX]
    if not fitting:
        return min(workers, key=lambda one: (len(one.requests), one.name))
    return min(fitting, key=lambda one: (-len(one.requests), one.name))


def _in_rotation(names: Sequence[str]) -> Route:
    def route(workers: Sequence[RoutedWorker], _arrival: Arrival, chosen: int) -> RoutedWorker:
        name = names[chosen % len(names)]
        return next((one for one in workers if one.name == name), workers[0])

    return route


def _model(knobs: MigrationScenarioKnobs) -> ModelKnobs:
    # Sufficient bandwidth: 131,072 bytes per token, and 700 tokens in the mean duration of a migration.
    mean_ms = sum(knobs.copy_ms) / 2.0
    migration_knobs = replace(knobs.migration_knobs, link_gbytes_per_s=131_072.0 * 700.0 / (mean_ms * 1e6))
    return ModelKnobs(
        "m",
        POOLS,
        planner="static",
        objectives=ObjectiveKnobs(ttft_ms=2_000.0, itl_ms=ITL_MS),
        planner_knobs={"static": StaticKnobs({"prefill": 1, "decode": knobs.workers})},
        migration=migration_knobs,
    )


def _tpot(knobs: MigrationScenarioKnobs) -> TpotSweep:
    return TpotSweep((1.0, 256.0), (8.0, 8.0), (ALPHA_MS + knobs.beta_ms, ALPHA_MS + 256.0 * knobs.beta_ms))


def _pool_fleet(knobs: MigrationScenarioKnobs, name: str, workers: int) -> SimulatedPoolKnobs:
    decode = LinearProfile(ALPHA_MS, knobs.beta_ms, 0.1, 1e-6)
    return SimulatedPoolKnobs(
        name,
        knobs.kv_blocks,
        linear=decode,
        max_batch_requests=BATCH_MAX,
        max_batched_tokens=1_000_000,
        workers=workers,
    )
