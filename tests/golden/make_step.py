"""Record the golden cases of ``loadline step``: ``python tests/golden/make_step.py [--write] [CASE ...]``.

``--write`` records new answers to the recorded lines; review and commit them after an intended change
of the agent. Without it, the simulated fleets run again, and both lines and answers are recorded.
"""

import argparse
import sys
from collections.abc import Callable
from math import pi, sin
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.golden.step_world import ALL, LATENCY, USAGE, Engine, Fleet, Pool, World  # noqa: E402 - the path comes first
from tests.golden.stepping import STEP, recorded_answers  # noqa: E402

MIGRATION_FIELDS: Final = (*USAGE, "decode_tokens", "decode_batch_requests")
Rate = Callable[[float], float]
MakeCase = Callable[[str], World]
MONDAY_MS: Final = 1_704_700_860_000
"""2024-01-08 08:01 UTC."""


def ramp(low: float, high: float, up_s: float = 30, top_s: float = 60, down_s: float = 90) -> Rate:
    """Return a load that is low, rises, is high until ``top_s``, falls until ``down_s``, and is low again."""

    def rate(at_s: float) -> float:
        rising = min(1.0, max(0.0, (at_s - up_s / 2) / (up_s / 2)))
        falling = min(1.0, max(0.0, (down_s - at_s) / (down_s - top_s)))
        return low + (high - low) * min(rising, falling)

    return rate


def burst(low: float, high: float, begin_s: float, end_s: float) -> Rate:
    """Return a load that is high between two times and low otherwise."""
    return lambda at_s: high if begin_s <= at_s < end_s else low


def wave(mean: float, swing: float, period_s: float) -> Rate:
    """Return a sinusoidal load."""
    return lambda at_s: mean + swing * sin(2 * pi * at_s / period_s)


def aggregated_pool(**fields: object) -> list[Pool]:
    """Return an aggregated pool."""
    return [Pool("engine", **fields)]  # type: ignore[arg-type]  # the fields of a pool


def disaggregated_pools(prefill: int = 1, decode: int = 1, start_s: float = 12.0) -> list[Pool]:
    """Return a prefill and a decode pool."""
    prompts = Engine(prompt_tokens_per_s=3_000.0)
    return [
        Pool("prefill", "prefill", prompts, prefill, start_s),
        Pool("decode", "decode", Engine(), decode, start_s),
    ]


def simple(
    pools: Callable[[], list[Pool]], rate: Rate, seconds: float = 160, step_ms: int = 3_000, **fields: object
) -> MakeCase:
    """Return a case with one fleet and one load, without faults."""

    def make(case: str) -> World:
        fleet = Fleet("llm", pools(), rate, **fields)  # type: ignore[arg-type]
        world = World(case, [fleet], seed=len(case), step_ms=step_ms)
        world.run(seconds)
        return world

    return make


def no_data(case: str) -> World:
    world = World(case, [Fleet("llm", disaggregated_pools(2, 2), ramp(3, 9))], seed=1, step_ms=3_000)
    decodes = ("ll-d3", "ll-d4")
    world.run(
        220,
        {
            30: lambda w: w.silence("llm", decodes[0]),
            60: lambda w: w.silence("llm"),
            90: lambda w: w.silence("llm", silent=False),
            150: lambda w: w.silence("llm", *decodes),
            190: lambda w: w.silence("llm", silent=False),
        },
    )
    return world


def silent_traffic(case: str) -> World:
    fleet = Fleet("llm", aggregated_pool(), ramp(2, 10), fields=LATENCY)
    world = World(case, [fleet], seed=2, step_ms=3_000)
    world.run(110)
    fleet.frontend = False
    world.run(70)
    fleet.frontend = True
    world.run(60)
    return world


def pending(case: str) -> World:
    pool = Pool("engine", workers=1, start_s=25.0, missing_workers=1)
    world = World(case, [Fleet("llm", [pool], ramp(2, 14, 20, 100, 120))], seed=3)
    world.run(180)
    return world


def unanswered(case: str) -> World:
    fleet = Fleet("llm", aggregated_pool(workers=1), ramp(2, 12), scaler="silent")
    world = World(case, [fleet], seed=4)
    for scaler in ("silent", "refuses", "slow", "done"):
        fleet.scaler = scaler
        world.run(50)
    return world


def vanish(case: str) -> World:
    fleet = Fleet("llm", disaggregated_pools(2, 4), wave(8, 2, 90))
    world = World(case, [fleet], seed=5, step_ms=3_000)
    world.run(
        230,
        {
            40: lambda w: w.lose("llm", "ll-d3"),
            70: lambda w: w.lose("llm", "ll-d4", "ll-d5", "ll-p1"),
            120: lambda w: w.start(fleet, *[fleet.pools["decode"]] * 3),
            180: lambda w: w.lose("llm", *list(fleet.workers)),
            200: lambda w: w.start(fleet, *fleet.pools.values()),
        },
    )
    return world


def drains(case: str) -> World:
    fleet = Fleet("llm", disaggregated_pools(3, 5), lambda _: 4.0, osl=900)
    fleet.pools["decode"].drain_s = 50.0
    world = World(case, [fleet], seed=6)
    world.run(
        180,
        {
            80: lambda w: w.command(drain=["llm", "prefill", "ll-p1"]),
            100: lambda w: w.lose("llm", "ll-d5"),
            120: lambda w: w.command(drain=["llm", "decode", "ll-d7"]),
            124: lambda w: w.lose("llm", "ll-d7"),
        },
    )
    return world


def migrations(pools: Callable[[], list[Pool]], rate: Rate, ends: tuple[str, ...] = ("done",)) -> MakeCase:
    """Return a case of uneven loads whose migrations have these outcomes."""

    def make(case: str) -> World:
        fleet = Fleet("llm", pools(), rate, osl=700, balanced=False, fields=MIGRATION_FIELDS)
        world = World(case, [fleet], seed=7, step_ms=1_000)
        for end in ends:
            fleet.migration_end = end  # type: ignore[assignment]
            world.run(52 / len(ends))
        return world

    return make


def migrating_pools(prefill: int, decode: int) -> list[Pool]:
    """Return a prefill pool, and a decode pool with two workers per node that can migrate requests."""
    pools = disaggregated_pools(prefill, decode)
    pools[1].slots = 4
    pools[1].record_of = lambda number: {"node": f"n{number // 2}", "unit": f"u{number // 4}"}

    return pools


def failover(case: str) -> World:
    fleet = Fleet("llm", migrating_pools(2, 6), lambda _: 5.0, osl=700, fields=MIGRATION_FIELDS)
    world = World(case, [fleet], seed=8, step_ms=1_000)
    world.run(
        54,
        {
            12: lambda w: w.silence("llm", "ll-d4"),
            30: lambda w: w.silence("llm", silent=False),
            38: lambda w: w.silence("llm", "ll-d5", "ll-p1"),
            50: lambda w: w.lose("llm", "ll-d5"),
        },
    )
    return world


def migration_drain(case: str) -> World:
    fleet = Fleet("llm", aggregated_pool(workers=4, slots=3), burst(6, 1, 20, 999), osl=900, fields=MIGRATION_FIELDS)
    world = World(case, [fleet], seed=9, step_ms=1_000)
    world.run(70, {30: lambda w: w.command(drain=["llm", "engine", "ll-e2"])})
    return world


def allocation(case: str) -> World:
    def pools(**gpus: tuple[str, int]) -> list[Pool]:
        found = []
        for name, (accelerator, count) in gpus.items():
            size = 0.5 if name == "cheap" else 2.0 if name == "pair" else 1.0
            engine = Engine(8_000 * size, batch=int(16 * size), blocks=int(1_200 * size))
            record = {"accelerator": accelerator, "gpus": count}
            found.append(Pool(name, engine=engine, workers=int(name != "cheap"), record=record))
        return found

    fleets = [
        Fleet("chat", pools(big=("h100", 1), cheap=("l40", 1)), ramp(2, 16, 20, 80, 110)),
        Fleet("code", pools(pair=("h100-pair", 2), cheap=("l40", 1)), ramp(2, 24, 50, 100, 130)),
        Fleet("batch", pools(big=("h100", 1), cheap=("l40", 1)), lambda _: 10.0),
    ]
    world = World(case, fleets, seed=10, step_ms=3_000)
    world.run(132)
    return world


def fleet_budget(case: str) -> World:
    fleets = [
        Fleet("one", aggregated_pool(workers=4), ramp(2, 22, 20, 60, 75)),
        Fleet("two", aggregated_pool(workers=4), ramp(2, 22, 100, 130, 150)),
    ]
    world = World(case, fleets, seed=11)
    world.run(132)
    return world


def schedules(case: str) -> World:
    world = World(
        case, [Fleet("llm", aggregated_pool(workers=1), lambda _: 2.0)], seed=12, step_ms=4_000, start_ms=MONDAY_MS
    )
    world.run(400)
    return world


def zero(case: str) -> World:
    rate = lambda at_s: 0.0 if 40 <= at_s < 130 or at_s >= 180 else 3.0  # noqa: E731
    world = World(case, [Fleet("llm", disaggregated_pools(1, 1), rate)], seed=13, step_ms=3_000)
    world.run(240)
    return world


def pauses(case: str) -> World:
    world = World(case, [Fleet("llm", aggregated_pool(workers=1), burst(2, 12, 20, 80))], seed=14)
    world.run(
        200,
        {
            16: lambda w: w.command(pause="llm"),
            60: lambda w: w.command(resume="llm"),
            110: lambda w: w.command(pause="llm"),
            140: lambda w: w.command(resume="llm"),
        },
    )
    return world


def reload(case: str) -> World:
    world = World(case, [Fleet("llm", aggregated_pool(workers=1), wave(6, 4, 100))], seed=15)
    world.run(
        240,
        {
            60: lambda w: w.command(reload="reload.stricter.toml"),
            120: lambda w: w.command(reload="reload.planner.toml"),
            180: lambda w: w.command(reload="reload.toml"),
        },
    )
    return world


def rejected(case: str) -> World:
    fleet = Fleet("llm", aggregated_pool(workers=1), lambda _: 2.0)
    world = World(case, [fleet], seed=16)
    load, traffic = "g.v1.load.llm.engine.ll-e1", "g.v1.traffic.llm.gate"
    ids = {"model": "llm", "pool": "engine", "worker": "ll-e1", "incarnation": 1}
    aggregated = {**ids, "role": "aggregated"}
    sample = {"sequence": 1, "timestamp_ms": 0, "waiting_requests": 0}
    second = {**sample, "rank": 1, "kv_usage_ratio": 0.95}
    interval = {"sequence": 1, "interval_ms": 1_000, "arrivals": 1}
    report = {"frontend": "gate", "incarnation": 1, "sample": interval}
    unknown = {"decision_id": "abc", "model": "llm", "epoch": 1, "sequence": 9, "scaler": "toy", "status": "done"}
    wrong: list[dict[str, object]] = [
        {"subject": "x", "payload": {}},
        {"subject": "g.v1.decision.llm", "payload": {}},
        {"subject": load, "payload": []},
        {"subject": load, "payload": {**ids, "samples": []}},
        {"subject": load, "payload": {**ids, "pool": "other", "samples": [sample]}},
        {"subject": load, "payload": {**ids, "samples": [{**sample, "kv_usage_ratio": 3}]}},
        {"subject": load, "payload": {**ids, "incarnation": 9, "samples": [sample]}},
        {"subject": load, "payload": {**ids, "samples": [sample]}},
        {"subject": load, "payload": {**ids, "samples": [{**sample, "rank": 3, "sequence": 99}]}},
        {"subject": load.replace("e1", "ghost"), "payload": {**ids, "worker": "ll-ghost", "samples": [sample]}},
        {"subject": traffic, "payload": {"model": "llm"}},
        {"subject": traffic.replace("llm", "gpt"), "payload": {**report, "model": "gpt"}},
        {"subject": "g.v1.applied.llm", "payload": unknown},
        {"subject": "g.v1.drained.ll-e1", "payload": ids},
        {"record": {"model": "llm"}},
        {"record": {**aggregated, "worker": "odd", "role": "decode"}},
        {"record": {**aggregated, "worker": "else", "model": "gpt"}},
        {"record": {**aggregated, "worker": "lost", "pool": "none"}},
        {"gone": "nobody"},
        {"record": {**aggregated, "worker": "two", "data_parallel_size": 2}},
        {"subject": load.replace("ll-e1", "two"), "payload": {**ids, "worker": "two", "samples": [second]}},
        {"record": {**aggregated, "worker": "two", "incarnation": 2, "state": "starting"}},
        {"record": {**aggregated, "worker": "two", "incarnation": 3, "state": "draining"}},
    ]
    world.run(8)
    for item in wrong:
        world.raw(**item)
        world.run(2)
    world.run(30)
    return world


OUTCOMES = ("done", "aborted", "silent", "done")
CASE_MAKERS: Final[dict[str, MakeCase]] = {
    "saturation": simple(aggregated_pool, ramp(2, 12)),
    "saturation_roles": simple(disaggregated_pools, ramp(2, 12)),
    "saturation_upstream": simple(aggregated_pool, ramp(2, 12)),
    "saturation_tokens": simple(aggregated_pool, ramp(2, 12)),
    "threshold": simple(disaggregated_pools, ramp(2, 12)),
    "threshold_whole": simple(aggregated_pool, ramp(2, 14)),
    "static": simple(disaggregated_pools, wave(3, 2, 60), 60),
    "hpa": simple(disaggregated_pools, ramp(2, 12)),
    "auto": simple(aggregated_pool, burst(2, 20, 40, 80), fields=LATENCY),
    "auto_roles": simple(disaggregated_pools, ramp(2, 12), isl=1_500, fields=LATENCY),
    "kpa": simple(aggregated_pool, burst(2, 20, 40, 80)),
    "keda": simple(aggregated_pool, burst(2, 20, 40, 80)),
    "apa": simple(disaggregated_pools, ramp(2, 12)),
    "throughput": simple(disaggregated_pools, ramp(2, 12), isl=1_500),
    "throughput_history": simple(aggregated_pool, wave(14, 4, 600), 660, 10_000),
    "load": simple(lambda: disaggregated_pools(2, 2), ramp(3, 10), fields=LATENCY),
    "load_whole": simple(aggregated_pool, ramp(3, 10), fields=LATENCY),
    "sla": simple(disaggregated_pools, ramp(2, 12), isl=1_500, fields=LATENCY),
    "sla_whole": simple(aggregated_pool, ramp(2, 12), fields=LATENCY),
    "queueing": simple(disaggregated_pools, ramp(2, 12), isl=1_500, fields=LATENCY),
    "queueing_fitted": simple(aggregated_pool, ramp(3, 12), fields=ALL),
    "hybrid": simple(disaggregated_pools, ramp(2, 12), isl=1_500, fields=LATENCY),
    "hybrid_mixed": simple(
        lambda: [Pool("large", workers=1), Pool("small", engine=Engine(4_000, 14, 1.2, 8, 600), workers=1)],
        ramp(2, 14),
        160,
        fields=LATENCY,
    ),
    "no_data": no_data,
    "silent_traffic": silent_traffic,
    "overload": simple(lambda: aggregated_pool(workers=1), burst(2, 40, 20, 80), 140),
    "pending": pending,
    "unanswered": unanswered,
    "vanish": vanish,
    "drains": drains,
    "migration_load": migrations(lambda: migrating_pools(2, 5), lambda _: 6.0, OUTCOMES),
    "migration_requests": migrations(
        lambda: aggregated_pool(workers=5, slots=4, record_of=lambda n: {"unit": f"u{n % 2}"}), lambda _: 7.0
    ),
    "migration_failover": failover,
    "migration_drain": migration_drain,
    "migration_packing": migrations(lambda: migrating_pools(2, 6), burst(9, 0.5, 30, 999)),
    "migration_only": migrations(lambda: aggregated_pool(workers=3, slots=4), lambda _: 5.0),
    "allocation": allocation,
    "allocation_weighted": allocation,
    "allocation_exhaustive": allocation,
    "fleet_budget": fleet_budget,
    "schedules": schedules,
    "zero": zero,
    "pauses": pauses,
    "advice": simple(aggregated_pool, ramp(2, 12)),
    "reload": reload,
    "rejected": rejected,
}


def main() -> None:
    """Record the answers; without ``--write``, the lines as well."""
    parser = argparse.ArgumentParser(description="Record the golden cases of `loadline step`.")
    parser.add_argument("--write", action="store_true", help="record new answers to the recorded lines")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="case to record (default: all)")
    options = parser.parse_args()
    for case in options.cases or CASE_MAKERS:
        if options.write:
            answers = recorded_answers(case)
        else:
            world = CASE_MAKERS[case](case)
            answers = world.answers
            _write(f"{case}.jsonl", world.lines)
        _write(f"{case}.expected.jsonl", answers)


def _write(name: str, lines: list[str]) -> None:
    (STEP / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
