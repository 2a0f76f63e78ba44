"""How many workers sizing asks for, and how few simulated ones would do: Poisson requests, three roles, three engines.

95 % of the requests are to meet TTFT 500 ms and ITL 50 ms. For each case: how many workers are asked for, which
share of the requests they serve in time, and the fewest that do; then the sum of both, and in how many cases it was too
few, or more than one worker and 15 % too many. From the root of the repository:

  python -m tools.bench.sizing [--quick]
"""

from collections.abc import Iterator
from pathlib import Path

from loadline.config.profiles import read_decode, read_prefill
from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.vocabulary.scalars import Role
from loadline.rig.bench import options, result, say
from loadline.sim.engine import EngineTiming
from loadline.sim.profiles import LinearProfile, MeasuredProfile
from tests.support.sized import ATTAINMENT, Case, attained, fixed, requests, sized, spread

ROOT = Path(__file__).parents[2]
Engine = tuple[EngineProfile, EngineTiming, int]
"""What the planner knows, how long iterations take, and the KV blocks of a worker."""


def measured(stem: Path, kv_blocks: int) -> Engine:
    """An engine that a profiler has measured."""
    prefill, decode = (stem.with_name(f"{stem.name}_{kind}.npz") for kind in ("prefill", "decode"))
    return EngineProfile(read_prefill(prefill), read_decode(decode)), MeasuredProfile(prefill, decode), kv_blocks


ENGINES: dict[str, Engine] = {
    "h200-8b": measured(ROOT / "tests" / "vectors" / "data" / "dynamo_h200_llama3.1-8b-fp8_tp1", 59_000),
    "h100-70b": measured(ROOT / "agent" / "loadline" / "demo" / "data" / "dynamo_h100_llama3.3-70b-fp8_tp2", 14_000),
    "linear": (
        EngineProfile(linear=LinearKnobs(10.0, 0.1, 40.0, 0.02, max_kv_tokens=400_000.0)),
        LinearProfile(10.0, 0.1, 40.0, 0.02),
        25_000,
    ),
}
LENGTHS = {
    "150 + 100": (fixed(150), fixed(100)),
    "1,000 + 200": (fixed(1_000), fixed(200)),
    "about 1,000 + 200": (spread(1_000.0, 0.8, 3_500.0), spread(200.0, 1.0, 2_000.0)),
    "200 + about 800": (fixed(200), spread(800.0, 1.0, 4_000.0)),
}
ROLES: tuple[Role, ...] = ("prefill", "decode", "aggregated")


def cases(rates: tuple[float, ...]) -> Iterator[tuple[str, Case]]:
    """All of them, by name."""
    for role in ROLES:
        for engine, (profile, timing, kv_blocks) in ENGINES.items():
            for lengths, (isl, osl) in LENGTHS.items():
                for rate in rates:
                    count = 4_000 if role == "prefill" else int(max(4_000, rate * 300.0))
                    case = Case(role, profile, timing, rate, isl, osl, count=count, kv_blocks=kv_blocks)
                    yield f"{role:10} {engine:8} {lengths:17} {rate:4g}/s", case


def main() -> None:
    """Size, simulate and print."""
    counts: list[tuple[int, int]] = []
    for name, case in cases((20.0,) if options(__doc__) else (5.0, 20.0, 60.0)):
        arriving = requests(case)
        asked = sized(case, arriving).wanted
        share = attained(case, arriving, asked)
        needed = asked
        if share >= ATTAINMENT:
            while needed > 1 and attained(case, arriving, needed - 1) >= ATTAINMENT:
                needed -= 1
        else:
            while attained(case, arriving, needed) < ATTAINMENT:
                needed += 1
        say(f"{name}: {asked} workers serve {share:.1%} in time, {needed} would do")
        counts.append((asked, needed))
    short = sum(asked < needed for asked, needed in counts)
    excess = sum(asked > needed + max(1.0, 0.15 * needed) for asked, needed in counts)
    totals = [[float(sum(column))] for column in zip(*counts, strict=True)]
    result("sizing", "workers", *totals, cases=len(counts), short=short, excess=excess)


if __name__ == "__main__":
    main()
