"""Time of a migration round over 100, 1,000 and 10,000 workers: a whole turn of the core with all policies.

A quarter of the workers is prefill, the others decode in units of four ranks; 1% are unschedulable, and a fourteenth of
the others is overloaded. A full pass evaluates all workers with no migration in flight; a turn after one sample
evaluates what that changes. Migrations in flight are limited to 10,000 or to 64. The baseline computes and sorts the
loads of all workers in plain Python.

  python -m tools.bench.migration_round [--quick]
"""

import random
import time
from collections.abc import Callable
from typing import Final

from loadline.adapters import garbage
from loadline.core.engines.tpot import TpotSweep
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.in_flight import InFlightMigrations
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.events import AnyEvent
from tests.support.migration_world import MigrationWorld
from tools.bench.harness import options, percentile, progress, result

SIZES: Final = (100, 1_000, 10_000)
MIGRATIONS_MAX: Final = (10_000, 64)
SLOTS: Final = 4
UNSCHEDULABLE_EVERY: Final = 100
"""One of this many workers is unschedulable."""
WARM_UP_ROUNDS: Final = 3
BLOCKS: Final = 100_000
POOLS: Final = tuple(PoolKnobs(role, role, replicas_max=max(SIZES)) for role in ("decode", "prefill"))
POLICIES: Final = (
    "decode_load",
    "neutral_load",
    "prefill_failover",
    "decode_failover",
    "neutral_failover",
    "binpacking_mitigation",
    "binpacking_consolidation",
)
GRID: Final = [(batch, tokens) for batch in (1, 16, 64, 128, 256) for tokens in (8, 1_024, 8_192)]
TPOT: Final = TpotSweep(
    tuple(float(batch) for batch, _ in GRID),
    tuple(float(tokens) for _, tokens in GRID),
    tuple(10.0 + 0.1 * batch + 1e-5 * batch * tokens for batch, tokens in GRID),
)


def fleet(workers: int, migrations_max: int) -> MigrationWorld:
    """Build a fleet whose workers have all reported."""
    rng = random.Random(workers)  # noqa: S311 - the same fleet every time
    knobs = MigrationKnobs(
        policies=POLICIES,
        decode_load_threshold=0.7,
        load_balance_threshold=0.1,
        migrations_max=migrations_max,
        suspect_after_ms=60_000,
    )
    world = MigrationWorld(knobs, POOLS, TPOT)
    events: list[AnyEvent] = []
    for number in range(workers):
        pool = "prefill" if number % 4 == 0 else "decode"
        node, unit = f"n{number // 8}", f"u{number // 4}"
        events.append(world.worker(f"w{number}", pool, node=node, unit=unit))
        batch = rng.randint(1, 200)
        used = int(BLOCKS * rng.uniform(0.05, 0.75))
        slots = {"migration_slots_in": SLOTS, "migration_slots_out": SLOTS}
        world.load_report(f"w{number}", kv_blocks_total=BLOCKS, schedulable=number % UNSCHEDULABLE_EVERY > 0, **slots)
        events.append(world.report(f"w{number}", used, batch))
    world.handle(*events)
    return world


def pass_ms(world: MigrationWorld) -> float:
    """Time a turn in which all workers are due, with nothing in flight."""
    memory = world.controller.state.migration
    memory.in_flight = InFlightMigrations()
    world.now += 1
    world.controller.state.fleet.models["m"].migration.due_ms = world.now
    began_s = time.perf_counter()
    world.controller.handle([], world.now)
    return (time.perf_counter() - began_s) * 1e3


def sample_ms(world: MigrationWorld) -> float:
    """Time a turn with the report of one worker."""
    world.now += 1
    rng = random.Random(world.now)  # noqa: S311
    name = f"w{rng.randrange(len(world.records))}"
    event = world.report(name, int(BLOCKS * rng.uniform(0.05, 0.95)), rng.randint(1, 200))
    began_s = time.perf_counter()
    world.controller.handle([event], world.now)
    return (time.perf_counter() - began_s) * 1e3


def plain_ms(world: MigrationWorld) -> float:
    """Time the computation and sorting of all loads in plain Python."""
    samples = list(world.samples.items())
    began_s = time.perf_counter()
    loads = [((one.kv_blocks_used or 0) + (one.queued_prefill_tokens or 0), name) for name, one in samples]
    loads.sort()
    return (time.perf_counter() - began_s) * 1e3


def repeated(measure: Callable[[MigrationWorld], float], world: MigrationWorld, times: int) -> list[float]:
    """Repeat a measurement after a warm-up."""
    return [measure(world) for _ in range(WARM_UP_ROUNDS + times)][WARM_UP_ROUNDS:]


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, times = (1, 15) if options(__doc__) else (3, 60)
    for workers in SIZES:
        for migrations_max in MIGRATIONS_MAX:
            passes: list[list[float]] = []
            samples: list[list[float]] = []
            plain: list[float] = []
            world = fleet(workers, migrations_max)
            garbage.configure()
            for _ in range(rounds):
                passes.append(repeated(pass_ms, world, times))
                pairs = len(world.controller.state.migration.in_flight.open)
                samples.append(repeated(sample_ms, world, 3 * times))
                plain.append(percentile(repeated(plain_ms, world, 5), 0.5))
            for name, times_ms in (("pass", passes), ("one sample", samples)):
                medians = [percentile(one, 0.5) for one in times_ms]
                p99 = round(percentile([ms for one in times_ms for ms in one], 0.99), 3)
                progress(f"{name} of {workers} workers, {migrations_max} requests: {medians[-1]:.3f} ms, p99 {p99} ms")
                result(
                    f"{name}, {workers} workers, {migrations_max} requests", "ms", medians, plain, p99=p99, pairs=pairs
                )


if __name__ == "__main__":
    main()
