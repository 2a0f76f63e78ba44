"""The numbers of a simulation and of a comparison as rows of text: the terminal and the page show the same."""

from loadline.report import formatting
from loadline.sim.compare.comparison import ComparedRun, Comparison
from loadline.sim.result import FLAP_MS, Percentiles, SimulationResult

Row = tuple[str, ...]

COMPARED: Row = (
    "configuration",
    "planner",
    "TTFT met",
    "ITL met",
    "both met",
    "TTFT p95",
    "ITL p95",
    "GPU-hours",
    "actions",
    "flaps",
    "requests",
)
"""Header of the rows that ``compared`` gives."""


MOVED: Row = (
    "configuration",
    "ITL p99",
    "longest gap p99",
    "preempted",
    "retried",
    "moves",
    "refused",
    "aborted",
    "requests moved",
    "KV tokens moved",
    "GPU-hours",
)
"""Header of the rows that ``moved`` gives."""


def results(outcome: SimulationResult) -> list[Row]:
    """What came of one simulation: a name and a sentence each."""
    met, pools = outcome.attainment, outcome.gpu_hours_by_pool
    workers = ", ".join(f"{pool} {count}" for pool, count in outcome.workers_max.items())
    flaps = formatting.plural(outcome.flaps, "flap")
    return [
        ("trace", arrived(outcome)),
        ("fleet", f"{outcome.model}, the {outcome.planner} planner, seed {outcome.seed}"),
        ("SLO", f"{formatting.percent(met.both)} of the requests met both objectives"),
        ("TTFT", _latency(outcome.ttft_objective_ms, met.ttft, outcome.ttft_ms)),
        ("ITL", _latency(outcome.itl_objective_ms, met.itl, outcome.itl_ms)),
        ("gaps", f"longest time between two tokens of a request: {_percentiles(outcome.token_gap_max_ms)}"),
        ("GPU-hours", f"{formatting.hours(outcome.gpu_hours)} ({_by_pool(pools)}); most workers at once: {workers}"),
        ("scaling", f"{formatting.plural(outcome.scaling_actions, 'action')}, {flaps} (turned back within {_flap()})"),
        ("work moved", f"{formatting.plural(outcome.drains, 'drain')}, {_moved(outcome)}"),
        ("requests", _requests(outcome)),
        ("digest", outcome.digest[:16]),
    ]


def arrived(outcome: SimulationResult) -> str:
    """The trace and how much of it was played."""
    requests = formatting.plural(outcome.requests, "request")
    return f"{outcome.trace}: {requests} in {formatting.duration(outcome.duration_s)}"


def compared(comparison: Comparison) -> list[Row]:
    """One row for each run, clairvoyant ones as references, and the work bound last."""
    bound = comparison.work_bound
    requests = comparison.runs[0].outcome.requests
    last = ("work bound", "", "", "", "", "", "", formatting.hours(bound.gpu_hours), "", "", str(requests))
    return [*map(_compared, comparison.runs), last]


def moved(comparison: Comparison) -> list[Row]:
    """What moving requests came to: a row for each run, where there is one that moved any; else none."""
    runs = comparison.runs
    return [_moves(run) for run in runs] if any(run.outcome.migrations.commands for run in runs) else []


def label(run: ComparedRun) -> str:
    """What a run is called."""
    return f"{run.outcome.name}, clairvoyant" if run.kind == "clairvoyant" else run.outcome.name


def _compared(run: ComparedRun) -> Row:
    one = run.outcome
    return (
        label(run),
        one.planner,
        formatting.percent(one.attainment.ttft),
        formatting.percent(one.attainment.itl),
        formatting.percent(one.attainment.both),
        formatting.ms(one.ttft_ms.p95),
        formatting.ms(one.itl_ms.p95),
        formatting.hours(one.gpu_hours),
        str(one.scaling_actions),
        str(one.flaps),
        str(one.requests),
    )


def _moves(run: ComparedRun) -> Row:
    one, moves = run.outcome, run.outcome.migrations
    return (
        label(run),
        formatting.ms(one.itl_ms.p99),
        formatting.ms(one.token_gap_max_ms.p99),
        str(one.preempted),
        str(one.retried),
        str(moves.commands),
        str(moves.refused),
        str(moves.aborted),
        str(one.migrated),
        str(moves.kv_tokens),
        formatting.hours(one.gpu_hours),
    )


def _moved(outcome: SimulationResult) -> str:
    moves = outcome.migrations
    if not moves.commands:
        return formatting.plural(outcome.migrated, "migration")
    done = f"{formatting.plural(outcome.migrated, 'migration')} in {formatting.plural(moves.commands, 'move')}"
    return f"{done} ({moves.refused} refused, {moves.aborted} aborted), {moves.kv_tokens} KV tokens"


def _latency(objective_ms: float, met: float, found: Percentiles) -> str:
    return f"{formatting.percent(met)} within {objective_ms:g} ms; {_percentiles(found)}"


def _percentiles(found: Percentiles) -> str:
    return f"p50 {formatting.ms(found.p50)}, p95 {formatting.ms(found.p95)}, p99 {formatting.ms(found.p99)}"


def _requests(outcome: SimulationResult) -> str:
    parts = [
        f"{outcome.finished} finished",
        f"{outcome.unfinished} unfinished",
        f"{outcome.refused} refused",
        f"{outcome.drops} dropped",
        f"{outcome.retried} retried",
        f"{outcome.preempted} preempted",
    ]
    return ", ".join(parts)


def _by_pool(gpu_hours: dict[str, float]) -> str:
    return ", ".join(f"{pool} {formatting.hours(value)}" for pool, value in gpu_hours.items())


def _flap() -> str:
    return f"{FLAP_MS / 60_000.0:g} min"
