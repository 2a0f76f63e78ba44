"""Workers recommended by sizing, and the fewest that suffice in simulation: Poisson requests, three roles and engines.

95% of requests must meet TTFT 500 ms and ITL 50 ms. For each case it prints the recommended workers, the fraction of
requests that they serve within SLO, and the fewest workers that suffice; then the sums of both, and the cases with too
few workers, or with more than one worker and 15% too many. Run it from the root of the repository:

  python -m tools.bench.sizing [--quick]
"""

from collections.abc import Iterator
from pathlib import Path

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.vocabulary.scalars import Role
from loadline.profile_files import read_decode, read_prefill
from loadline.sim.engine import EngineTiming
from loadline.sim.profiles import LinearProfile, MeasuredProfile
from tests.support.sized_pools import ATTAINMENT, SizingCase, attained, fixed, requests, sized, spread
from tools.bench.harness import options, progress, result

ROOT = Path(__file__).parents[2]
Engine = tuple[EngineProfile, EngineTiming, int]
"""Profile of the planner, times of iterations, and KV blocks of a worker."""


def measured(stem: Path, kv_blocks: int) -> Engine:
    """Load the measured profile of an engine."""
    prefill, decode = (stem.with_name(f"{stem.name}_{kind}.json") for kind in ("prefill", "decode"))
    return EngineProfile(read_prefill(prefill), read_decode(decode)), MeasuredProfile(prefill, decode), kv_blocks


ENGINES: dict[str, Engine] = {
    "h200-8b": measured(ROOT / "tools" / "scoreboard" / "data" / "dynamo_h200_llama3.1-8b-fp8_tp1", 59_000),
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


def cases(rates: tuple[float, ...]) -> Iterator[tuple[str, SizingCase]]:
    """Yield all cases with their names."""
    for role in ROLES:
        for engine, (profile, timing, kv_blocks) in ENGINES.items():
            for lengths, (isl, osl) in LENGTHS.items():
                for rate in rates:
                    count = 4_000 if role == "prefill" else int(max(4_000, rate * 300.0))
                    case = SizingCase(role, profile, timing, rate, isl, osl, count=count, kv_blocks=kv_blocks)
                    yield f"{role:10} {engine:8} {lengths:17} {rate:4g}/s", case


def main() -> None:
    """Size and simulate all cases, and print the results."""
    counts: list[tuple[int, int]] = []
    for name, case in cases((20.0,) if options(__doc__) else (5.0, 20.0, 60.0)):
        arriving = requests(case)
        recommended = sized(case, arriving).replicas
        share = attained(case, arriving, recommended)
        needed = recommended
        if share >= ATTAINMENT:
            while needed > 1 and attained(case, arriving, needed - 1) >= ATTAINMENT:
                needed -= 1
        else:
            while attained(case, arriving, needed) < ATTAINMENT:
                needed += 1
        progress(f"{name}: {recommended} workers serve {share:.1%} within SLO, {needed} suffice")
        counts.append((recommended, needed))
    short = sum(recommended < needed for recommended, needed in counts)
    excess = sum(recommended > needed + max(1.0, 0.15 * needed) for recommended, needed in counts)
    totals = [[float(sum(column))] for column in zip(*counts, strict=True)]
    result("sizing", "workers", *totals, cases=len(counts), short=short, excess=excess)


if __name__ == "__main__":
    main()
