"""Costs and benefits of migration in virtual time: the production agent, simulated engines and a frontend.

Each line is one scenario of ``tests/support/migration_scenarios.py``, compared with the same without migration or with
the limit of the slots: steady loads and bursts (requests migrated, commands refused, busy workers), consolidation of
eight workers into two, a drain of 200 requests, failing workers, a source that never answers, and requests that return.

  python -m tools.bench.migrations [--quick]
"""

from collections import Counter
from typing import Final

from loadline.sim.serving.routing import least_loaded
from tests.support import migration_scenarios as scenarios
from tests.support.migration_simulation import Phase, Route, fullest_within_objective
from tools.bench.harness import options, progress, result

LOADS: Final = {"6/s": 6.0, "30 %": 6.4, "60 %": 12.8, "85 %": 18.1}
"""Requests per second; six workers serve 21.3 within the objective."""
ROUTES: Final[dict[str, Route]] = {"spread": least_loaded, "packed": fullest_within_objective}
COPY_TIMES_MS: Final = (400.0, 1_000.0)
DRAIN_MIN_MS: Final = 200 / 9 * 500.0
SEEDS: Final = 24


def loads(seconds: float) -> None:
    """Measure steady loads and bursts, routed to the least loaded or to the fullest worker with capacity."""
    phases = {f"steady {name}": (Phase(seconds, per_s),) for name, per_s in LOADS.items()}
    bursts = {
        name: (on, off) * int(seconds / (on.seconds + off.seconds)) for name, (on, off) in scenarios.BURSTS.items()
    }
    for name, load in (phases | bursts).items():
        for routing, route in ROUTES.items():
            for copy_ms in COPY_TIMES_MS:
                found = scenarios.run_load(*load, route=route, copy_ms=(copy_ms, copy_ms))
                result(
                    f"{name}, {routing}, migrations of {copy_ms:g} ms: busy workers",
                    "workers",
                    [found.busy],
                    [found.busy_without],
                    requests=found.requests,
                    moved_percent=round(100.0 * found.moved_share, 2),
                    refused_percent=round(100.0 * found.refused_share, 2),
                    itl_p95_ms=[round(found.itl_p95_ms, 1), round(found.itl_p95_without_ms, 1)],
                    commands=sorted_counts(found.commands),
                )


def consolidation_and_drain() -> None:
    """Measure the consolidation of eight workers into four and two, and the drain of one of ten."""
    for copy_ms in (1_000.0, 50.0):
        for slots in (1, 4):
            one = scenarios.consolidate(slots, copy_ms)
            name, min_ms = f"8 workers of 4 requests, {slots} slots, migrations of {copy_ms:g} ms", copy_ms * 4 / slots
            figures = {
                "refused": one.refused_share,
                "waited_ms": one.waited_ms,
                "commands": sorted_counts(one.commands),
            }
            result(f"{name}: until 4 are busy", "ms", [one.four_ms], [min_ms], **figures)
            result(f"{name}: until 2 are busy", "ms", [one.two_ms], [3 * min_ms])
    moved, finished = scenarios.drain_one(), scenarios.drain_one(migrate=False)
    result(
        "drain of 200 requests to 9 workers of one slot",
        "ms",
        [moved.took_ms],
        [DRAIN_MIN_MS],
        finished_ms=finished.took_ms,
        received=dict(sorted(moved.received.items())),
        refused=moved.refused_share,
    )


def failures() -> None:
    """Measure the time from a failure to the first migrate command."""
    hangs = [scenarios.failover_of_silent_ms(after_ms) for after_ms in range(0, 1_000, 50)]
    result("a worker hangs: until the first command", "ms", hangs, [5_000.0] * len(hangs))
    result(
        "a worker becomes unschedulable: until the first command",
        "ms",
        [scenarios.failover_of_unschedulable_ms()],
        [5.0],
    )
    unit, partitioned = scenarios.fail_unit(lost=True), scenarios.fail_unit(lost=False)
    result("a rank is lost: until the others are emptied", "ms", [unit.first_ms], [5_000.0], left=unit.remaining)
    progress(
        f"a rank is partitioned from the store: {partitioned.remaining} requests stay,"
        f" first command at {partitioned.first_ms} ms"
    )
    answer, silent = scenarios.balance_pairs(), scenarios.balance_pairs("decode-07")
    later = [pair.migrated_ms - answer[name].migrated_ms for name, pair in silent.items()]
    result("50 sources, one silent: delay of the others", "ms", [max(later)], [5_000.0], sources=len(later))


def returns() -> None:
    """Count requests that return within 10 s, and commands in the reverse direction, at thresholds of 0.3 and 0.1."""
    static = [scenarios.balance_static_load(seed) for seed in range(SEEDS)]
    for name, found in (
        ("get no new requests", static),
        ("are routed to the fullest", [scenarios.balance_against_routing()]),
    ):
        hops, commands = (
            sum(len(simulation.hops) for simulation in found),
            sum(len(simulation.commanded) for simulation in found),
        )
        figures = {"reversals": sum(simulation.reversals() for simulation in found), "commands": commands}
        returned = float(sum(len(simulation.rebounds()) for simulation in found))
        result(f"loads that {name}: requests that returned", "requests", [returned], [float(hops)], **figures)


def sorted_counts(commands: Counter[str]) -> dict[str, int]:
    """Return the counts in a fixed order."""
    return dict(sorted(commands.items()))


def main() -> None:
    """Run the benchmark and print its results."""
    loads(60.0 if options(__doc__) else 300.0)
    consolidation_and_drain()
    failures()
    returns()


if __name__ == "__main__":
    main()
