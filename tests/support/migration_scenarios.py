"""Scenarios that measure the costs and benefits of migration, in virtual time and with one seed each."""

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
"""KV blocks that no scenario fills."""
LONG: Final = 3_000
"""Output tokens of requests that outlast a measurement of 30 s."""
NO_MIGRATION: Final = replace(ALL_POLICIES, enabled=False)
BURSTS: Final = {
    "on 10 s, off 10 s": (Phase(10, 10), Phase(10, 0.5)),
    "on 30 s, off 30 s": (Phase(30, 12), Phase(30, 0.5)),
    "dense, 10/s for 5 s": (Phase(5, 10), Phase(5, 2)),
}
_TIMEOUT_MS: Final = 120_000.0


class LoadResult(Struct, frozen=True):
    """Figures of a load with all policies, compared with the same load without migration."""

    requests: int
    moved: int
    commands: Counter[str]
    refused_share: float
    busy: float
    """Mean number of workers with requests."""
    busy_without: float
    """Mean number of workers with requests without migration."""
    itl_p95_ms: float
    itl_p95_without_ms: float

    @property
    def moved_share(self) -> float:
        """Fraction of requests that migrated."""
        return self.moved / self.requests


def run_load(
    *phases: Phase, route: Route = least_loaded, copy_ms: tuple[float, float] = (400.0, 1_000.0)
) -> LoadResult:
    """Run six workers with one slot in and out under a load, with and without migration."""
    migrating, static = (
        MigrationSimulation(MigrationScenarioKnobs(migration_knobs=knobs, route=route, copy_ms=copy_ms, seed=7))
        for knobs in (ALL_POLICIES, NO_MIGRATION)
    )
    for simulation in (migrating, static):
        simulation.run_load(*phases)
    return LoadResult(
        migrating.served.requests,
        len({hop.request_id for hop in migrating.hops}),
        migrating.commands(),
        migrating.refused_share(),
        sum(migrating.busy) / len(migrating.busy),
        sum(static.busy) / len(static.busy),
        migrating.served.itl_percentiles().p95 or 0.0,
        static.served.itl_percentiles().p95 or 0.0,
    )


class ConsolidationResult(Struct, frozen=True):
    """Consolidation of eight workers with four requests each. Times in ms since the first command."""

    waited_ms: float
    """Time until the first command."""
    four_ms: float
    """Time until only four workers have requests."""
    two_ms: float
    """Time until only two workers have requests; a worker has room for 31 of the 32."""
    commands: Counter[str]
    refused_share: float


def consolidate(slots: int = 1, copy_ms: float = 1_000.0) -> ConsolidationResult:
    """Consolidate eight workers with four requests each, without arrivals."""
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(workers=8, slots=slots, copy_ms=(copy_ms, copy_ms), kv_blocks=ROOMY, route=round_robin)
    )
    for _ in range(32):
        simulation.gateway.submit(Arrival(0.0, 500, 10_000))
    waited_ms = simulation.advance_until(lambda: bool(simulation.commanded), _TIMEOUT_MS)
    first_ms = simulation.commanded[0].at_ms
    four_ms, two_ms = (_until_busy(simulation, count) - first_ms for count in (4, 2))
    return ConsolidationResult(waited_ms, four_ms, two_ms, simulation.commands(), simulation.refused_share())


def _until_busy(simulation: MigrationSimulation, count: int) -> float:
    simulation.advance_until(lambda: sum(bool(one.held) for one in simulation.decode.values()) <= count, _TIMEOUT_MS)
    return simulation.timeline.now_ms


class DrainResult(Struct, frozen=True):
    """Drain of one of ten workers with 200 requests."""

    took_ms: float
    received: Counter[str]
    """Requests by destination."""
    slots_max: int
    """Maximum of the requests that migrated to one destination at a time."""
    commands: Counter[str]
    refused_share: float


def drain_one(*, migrate: bool = True, also: tuple[str, ...] = ()) -> DrainResult:
    """Drain one of ten workers with 200 requests, and the workers in ``also`` with it."""
    knobs = replace(ALL_POLICIES, policies=(), migrate_drains=migrate)
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(workers=10, migration_knobs=knobs, copy_ms=(500.0, 500.0), kv_blocks=ROOMY, beta_ms=0.1)
    )
    simulation.start_requests(200, "decode-00", osl_tokens=2_000)
    for name in ("decode-00", *also):
        simulation.drain(name)
    highest = 0

    def is_empty() -> bool:
        nonlocal highest
        in_flight = simulation.agent.controller.state.migration.in_flight.of_model("m")
        arriving = Counter(one.command.destination.worker for one in in_flight for _ in range(one.slots))
        highest = max(highest, *arriving.values()) if arriving else highest
        return not simulation.decode["decode-00"].held

    took_ms = simulation.advance_until(is_empty, 600_000.0)
    received = Counter(hop.destination for hop in simulation.hops if hop.source == "decode-00")
    return DrainResult(took_ms, received, highest, simulation.commands(), simulation.refused_share())


def _only(policy: PolicyName, **knobs: float) -> MigrationKnobs:
    return replace(ALL_POLICIES, policies=(policy,), **knobs)


def failover_of_silent_ms(after_ms: int) -> float:
    """Return the ms from the start of a worker's silence, ``after_ms`` after a report, to the first command."""
    simulation = MigrationSimulation(MigrationScenarioKnobs(migration_knobs=_only("decode_failover"), kv_blocks=ROOMY))
    simulation.start_requests(8, "decode-00")
    simulation.advance(500.0 + after_ms)
    simulation.decode["decode-00"].silent_until_ms = float("inf")
    return simulation.advance_until(lambda: bool(simulation.commanded), _TIMEOUT_MS)


def failover_of_unschedulable_ms() -> float:
    """Return the ms from the report of an unschedulable worker to the command; 0.5 ms are the bus."""
    simulation = MigrationSimulation(MigrationScenarioKnobs(migration_knobs=_only("decode_failover"), kv_blocks=ROOMY))
    simulation.start_requests(8, "decode-00")
    worker, now_ms = simulation.decode["decode-00"], simulation.timeline.now_ms
    worker.schedulable = False
    worker._report()
    simulation.advance_until(lambda: bool(simulation.commanded), _TIMEOUT_MS)
    return simulation.commanded[0].at_ms - now_ms


class UnitResult(Struct, frozen=True):
    """Unit of four ranks after a fault of the first one."""

    first_ms: float
    """Time until the first command to one of the others; inf: none."""
    remaining: dict[str, int]
    """Requests of each of the others after 30 s."""
    within_unit: int
    """Migrations to a worker of the unit."""
    still_registered: bool
    """True if the first worker is still registered."""


def fail_unit(*, lost: bool) -> UnitResult:
    """Kill the first rank (``lost``), or partition it from the store, so that its lease expires while it reports."""
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(workers=12, units_of=4, migration_knobs=_only("decode_failover"), kv_blocks=ROOMY)
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
    """Time of the first command to a source, and of its first migrated request, in virtual ms."""

    commanded_ms: float
    migrated_ms: float


def balance_pairs(silent: str = "") -> dict[str, PairResult]:
    """Overload fifty of a hundred workers at once; return the times of each but the silent one.

    Args:
        silent: Worker that never answers a command.
    """
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(
            workers=100,
            migration_knobs=_only("decode_load", migrations_max=10_000),
            copy_ms=(100.0, 100.0),
            kv_blocks=2_000,
        )
    )
    if silent:
        simulation.ignore_commands(silent)
    simulation.start_requests(60, *list(simulation.decode)[:50], osl_tokens=200)
    simulation.advance(2_500.0)
    commanded_ms = {one.migration.source.worker: one.at_ms for one in reversed(simulation.commanded)}
    migrated_ms = {hop.source: hop.at_ms for hop in reversed(simulation.hops)}
    return {
        name: PairResult(at_ms, migrated_ms[name]) for name, at_ms in sorted(commanded_ms.items()) if name != silent
    }


def balance_static_load(seed: int) -> MigrationSimulation:
    """Balance unequal loads for 30 s without arrivals, with a load threshold of 0.3 and a gap threshold of 0.1."""
    draw = random.Random(seed)
    knobs = _only("decode_load", decode_load_threshold=0.3, load_balance_threshold=0.1)
    slots, copy_ms = draw.choice(((1, (400.0, 1_000.0)), (4, (400.0, 1_000.0)), (4, (50.0, 50.0))))
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(
            migration_knobs=knobs, slots=slots, copy_ms=copy_ms, kv_blocks=2_000, beta_ms=0.05, seed=seed
        )
    )
    for name in simulation.decode:
        simulation.start_requests(draw.randint(1, 25), name, isl_tokens=draw.randint(200, 1_000), osl_tokens=LONG)
    simulation.advance(30_000.0)
    return simulation


def balance_against_routing(per_s: float = 20.4, seconds: float = 60.0) -> MigrationSimulation:
    """Balance with the same thresholds under routing to the fullest worker, which counteracts it."""
    knobs = _only("decode_load", decode_load_threshold=0.3, load_balance_threshold=0.1)
    simulation = MigrationSimulation(
        MigrationScenarioKnobs(
            migration_knobs=knobs,
            slots=4,
            copy_ms=(50.0, 50.0),
            kv_blocks=2_000,
            route=fullest_within_objective,
            seed=7,
        )
    )
    simulation.run_load(Phase(seconds, per_s))
    return simulation
