"""The scenarios that moves are measured in. Each gives what it found; times are virtual, of one seed."""

import random
from collections import Counter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.migration.knobs import MigrationKnobs, PolicyName
from loadline.sim.serving.routing import least_loaded, round_robin
from loadline.traces import Arrival
from tests.support.migration_simulation import (
    ALL_POLICIES,
    MigrationScenarioKnobs,
    MigrationSimulation,
    Phase,
    Route,
    fullest_within_objective,
)

ROOMY: Final = 40_000
"""KV blocks that nothing here fills."""
LONG: Final = 3_000
"""Output tokens of requests that outlast what is measured, for 30 s and more."""
NO_MIGRATION: Final = replace(ALL_POLICIES, enabled=False)
BURSTS: Final = {
    "on 10 s, off 10 s": (Phase(10, 10), Phase(10, 0.5)),
    "on 30 s, off 30 s": (Phase(30, 12), Phase(30, 0.5)),
    "dense, 10/s for 5 s": (Phase(5, 10), Phase(5, 2)),
}
_PATIENCE_MS: Final = 120_000.0


class LoadResult(Struct, frozen=True):
    """What came of a load with all policies on, beside the same load with none."""

    requests: int
    moved: int
    commands: Counter[str]
    refused_share: float
    busy: float
    """Workers with requests, on average."""
    busy_still: float
    """The same where nothing moves."""
    itl_p95_ms: float
    itl_p95_still_ms: float

    @property
    def moved_share(self) -> float:
        """Of all requests."""
        return self.moved / self.requests


def run_load(
    *phases: Phase, route: Route = least_loaded, copy_ms: tuple[float, float] = (400.0, 1_000.0)
) -> LoadResult:
    """Six workers with a slot each way under a load."""
    moving, still = (
        MigrationSimulation(MigrationScenarioKnobs(moving=knobs, route=route, copy_ms=copy_ms, seed=7))
        for knobs in (ALL_POLICIES, NO_MIGRATION)
    )
    for simulation in (moving, still):
        simulation.run_load(*phases)
    return LoadResult(
        moving.served.requests,
        len({hop.request_id for hop in moving.hops}),
        moving.commands(),
        moving.refused_share(),
        sum(moving.busy) / len(moving.busy),
        sum(still.busy) / len(still.busy),
        moving.served.itl_percentiles().p95 or 0.0,
        still.served.itl_percentiles().p95 or 0.0,
    )


class ConsolidationResult(Struct, frozen=True):
    """How eight workers of four requests each were emptied. Times since the first command, in ms."""

    waited_ms: float
    """Until the first command."""
    four_ms: float
    """Until four had requests."""
    two_ms: float
    """Until two had: all that fits in one would be 31 requests."""
    commands: Counter[str]
    refused_share: float


def consolidate(slots: int = 1, copy_ms: float = 1_000.0) -> ConsolidationResult:
    """Eight workers with four requests each and nobody who asks for more."""
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(workers=8, slots=slots, copy_ms=(copy_ms, copy_ms), kv_blocks=ROOMY, route=round_robin)
    )
    for _ in range(32):
        simulation.gateway.submit(Arrival(0.0, 500, 10_000))
    waited_ms = simulation.advance_until(lambda: bool(simulation.commanded), _PATIENCE_MS)
    first_ms = simulation.commanded[0].at_ms
    four_ms, two_ms = (_until_busy(simulation, count) - first_ms for count in (4, 2))
    return ConsolidationResult(waited_ms, four_ms, two_ms, simulation.commands(), simulation.refused_share())


def _until_busy(simulation: MigrationSimulation, count: int) -> float:
    simulation.advance_until(lambda: sum(bool(one.held) for one in simulation.decode.values()) <= count, _PATIENCE_MS)
    return simulation.timeline.now_ms


class DrainResult(Struct, frozen=True):
    """How one of ten workers was emptied of 200 requests."""

    took_ms: float
    received: Counter[str]
    """Requests by destination."""
    slots_most: int
    """Most requests that were on their way to one destination."""
    commands: Counter[str]
    refused_share: float


def drain_one(*, moves: bool = True, also: tuple[str, ...] = ()) -> DrainResult:
    """One of ten workers, which takes 200 requests, drains; ``also``: others that drain with it."""
    knobs = replace(ALL_POLICIES, policies=(), migrate_drains=moves)
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(workers=10, moving=knobs, copy_ms=(500.0, 500.0), kv_blocks=ROOMY, beta_ms=0.1)
    )
    simulation.start_requests(200, "decode-00", osl_tokens=2_000)
    for name in ("decode-00", *also):
        simulation.drain(name)
    most = 0

    def over() -> bool:
        nonlocal most
        flights = simulation.agent.controller.state.migration.in_flight.of_model("m")
        coming = Counter(one.command.destination.worker for one in flights for _ in range(one.slots))
        most = max(most, *coming.values()) if coming else most
        return not simulation.decode["decode-00"].held

    took_ms = simulation.advance_until(over, 600_000.0)
    received = Counter(hop.destination for hop in simulation.hops if hop.source == "decode-00")
    return DrainResult(took_ms, received, most, simulation.commands(), simulation.refused_share())


def _only(policy: PolicyName, **knobs: float) -> MigrationKnobs:
    return replace(ALL_POLICIES, policies=(policy,), **knobs)


def failover_of_silent_ms(after_ms: int) -> float:
    """A worker says nothing more from a moment on, ``after_ms`` after a report: ms until it is asked to move."""
    simulation = MigrationSimulation(MigrationScenarioKnobs(moving=_only("decode_failover"), kv_blocks=ROOMY))
    simulation.start_requests(8, "decode-00")
    simulation.advance(500.0 + after_ms)
    simulation.decode["decode-00"].silent_until_ms = float("inf")
    return simulation.advance_until(lambda: bool(simulation.commanded), _PATIENCE_MS)


def failover_of_unschedulable_ms() -> float:
    """A worker says that it must not be given work: virtual ms from its report to the command, 0.5 on the bus."""
    simulation = MigrationSimulation(MigrationScenarioKnobs(moving=_only("decode_failover"), kv_blocks=ROOMY))
    simulation.start_requests(8, "decode-00")
    worker, now_ms = simulation.decode["decode-00"], simulation.timeline.now_ms
    worker.schedulable = False
    worker._report()
    simulation.advance_until(lambda: bool(simulation.commanded), _PATIENCE_MS)
    return simulation.commanded[0].at_ms - now_ms


class UnitResult(Struct, frozen=True):
    """What became of a unit of four ranks, the first of which had something happen to it."""

    first_ms: float
    """Until one of the others was asked to move; inf: none was."""
    left: dict[str, int]
    """Requests of each of the others after 30 s."""
    inside: int
    """Moves to one of them."""
    known: bool
    """Whether the first is registered still."""


def fail_unit(*, lost: bool) -> UnitResult:
    """Its process ends (``lost``), or it is cut off from the store, so that its lease runs out, and still reports."""
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(workers=12, units_of=4, moving=_only("decode_failover"), kv_blocks=ROOMY)
    )
    ranks = list(simulation.decode)[:4]
    simulation.start_requests(4, *ranks)
    now_ms, first = simulation.timeline.now_ms, simulation.decode[ranks[0]]
    if lost:
        first.kill()
    else:
        first.store.set_partitioned(partitioned=True)
    simulation.advance(30_000.0)
    return UnitResult(
        min((one.at_ms for one in simulation.commanded), default=float("inf")) - now_ms,
        {name: len(simulation.decode[name].held) for name in ranks[1:]},
        sum(one.migration.destination.worker in ranks for one in simulation.commanded),
        ranks[0] in simulation.agent.controller.state.fleet.models["m"].pools["decode"].workers,
    )


class PairResult(Struct, frozen=True):
    """When a source got its first command, and when its first request was gone: virtual ms."""

    asked_ms: float
    gone_ms: float


def balance_pairs(silent: str = "") -> dict[str, PairResult]:
    """Fifty of a hundred workers are overloaded at once; gives what became of each but the silent one.

    Args:
        silent: This one never answers a command.
    """
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(
            workers=100, moving=_only("decode_load", migrations_max=10_000), copy_ms=(100.0, 100.0), kv_blocks=2_000
        )
    )
    if silent:
        simulation.ignore_commands(silent)
    simulation.start_requests(60, *list(simulation.decode)[:50], osl_tokens=200)
    simulation.advance(2_500.0)
    asked_ms = {one.migration.source.worker: one.at_ms for one in reversed(simulation.commanded)}
    gone_ms = {hop.source: hop.at_ms for hop in reversed(simulation.hops)}
    return {name: PairResult(at_ms, gone_ms[name]) for name, at_ms in sorted(asked_ms.items()) if name != silent}


def balance_static_load(seed: int) -> MigrationSimulation:
    """Unequal loads that nobody adds to, for half a minute, balanced from 0.3 on as soon as two are 0.1 apart."""
    draw = random.Random(seed)
    knobs = _only("decode_load", decode_load_threshold=0.3, load_balance_threshold=0.1)
    slots, copy_ms = draw.choice(((1, (400.0, 1_000.0)), (4, (400.0, 1_000.0)), (4, (50.0, 50.0))))
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(moving=knobs, slots=slots, copy_ms=copy_ms, kv_blocks=2_000, beta_ms=0.05, seed=seed)
    )
    for name in simulation.decode:
        simulation.start_requests(draw.randint(1, 25), name, isl_tokens=draw.randint(200, 1_000), osl_tokens=LONG)
    simulation.advance(30_000.0)
    return simulation


def balance_against_routing(per_s: float = 20.4, seconds: float = 60.0) -> MigrationSimulation:
    """The same thresholds under load that is always given to the fullest: whoever routes works against them."""
    knobs = _only("decode_load", decode_load_threshold=0.3, load_balance_threshold=0.1)
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(
            moving=knobs, slots=4, copy_ms=(50.0, 50.0), kv_blocks=2_000, route=fullest_within_objective, seed=7
        )
    )
    simulation.run_load(Phase(seconds, per_s))
    return simulation
