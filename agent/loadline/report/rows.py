"""Results of simulations and comparisons as rows of text, for the terminal and for pages."""

from loadline import formatting
from loadline.sim.compare.comparison import ComparedRun, Comparison
from loadline.sim.result import FLAP_MS, Percentiles, SimulationResult

Row = tuple[str, ...]

COMPARISON_HEADER: Row = (
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
"""Header of the rows of ``comparison_rows``."""

MIGRATION_HEADER: Row = (
    "configuration",
    "ITL p99",
    "longest gap p99",
    "preempted",
    "retried",
    "commands",
    "refused",
    "aborted",
    "requests migrated",
    "KV tokens migrated",
    "GPU-hours",
)
"""Header of the rows of ``migration_rows``."""


def result_rows(outcome: SimulationResult) -> list[Row]:
    """Return the results of one simulation as pairs of name and sentence."""
    met, pools = outcome.attainment, outcome.gpu_hours_by_pool
    workers = ", ".join(f"{pool} {count}" for pool, count in outcome.workers_max.items())
    flaps = formatting.plural(outcome.flaps, "flap")
    return [
        ("trace", trace_summary(outcome)),
        ("fleet", f"{outcome.model}, {outcome.planner} planner, seed {outcome.seed}"),
        ("SLO", f"{formatting.percent(met.both)} of requests met both objectives"),
        ("TTFT", _latency(outcome.ttft_objective_ms, met.ttft, outcome.ttft_ms)),
        ("ITL", _latency(outcome.itl_objective_ms, met.itl, outcome.itl_ms)),
        ("gaps", f"longest gap between two tokens of a request: {_percentiles(outcome.token_gap_max_ms)}"),
        ("GPU-hours", f"{formatting.hours(outcome.gpu_hours)} ({_by_pool(pools)}); peak workers: {workers}"),
        ("scaling", f"{formatting.plural(outcome.scaling_actions, 'action')}, {flaps} (reversed within {_flap()})"),
        ("migration", f"{formatting.plural(outcome.drains, 'drain')}, {_migrated(outcome)}"),
        ("requests", _requests(outcome)),
        ("digest", outcome.digest[:16]),
    ]


def trace_summary(outcome: SimulationResult) -> str:
    """Return the name of the trace, its requests and its duration."""
    requests = formatting.plural(outcome.requests, "request")
    return f"{outcome.trace}: {requests} in {formatting.duration(outcome.duration_s)}"


def comparison_rows(comparison: Comparison) -> list[Row]:
    """Return one row per run, with clairvoyant references, and the work bound last."""
    bound = comparison.work_bound
    requests = comparison.runs[0].outcome.requests
    last = ("work bound", "", "", "", "", "", "", formatting.hours(bound.gpu_hours), "", "", str(requests))
    return [*map(_compared, comparison.runs), last]


def migration_rows(comparison: Comparison) -> list[Row]:
    """Return one row per run if any run migrated requests, else none."""
    runs = comparison.runs
    return [_migration_row(run) for run in runs] if any(run.outcome.migrations.commands for run in runs) else []


def run_label(run: ComparedRun) -> str:
    """Return the display name of a run."""
    return f"{run.outcome.name}, clairvoyant" if run.kind == "clairvoyant" else run.outcome.name


def _compared(run: ComparedRun) -> Row:
    one = run.outcome
    return (
        run_label(run),
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


def _migration_row(run: ComparedRun) -> Row:
    one, migrations = run.outcome, run.outcome.migrations
    return (
        run_label(run),
        formatting.ms(one.itl_ms.p99),
        formatting.ms(one.token_gap_max_ms.p99),
        str(one.preempted),
        str(one.retried),
        str(migrations.commands),
        str(migrations.refused),
        str(migrations.aborted),
        str(one.migrated),
        str(migrations.kv_tokens),
        formatting.hours(one.gpu_hours),
    )


def _migrated(outcome: SimulationResult) -> str:
    found = outcome.migrations
    migrated = f"{formatting.plural(outcome.migrated, 'request')} migrated"
    if not found.commands:
        return migrated
    commands = formatting.plural(found.commands, "command")
    return f"{migrated} by {commands} ({found.refused} refused, {found.aborted} aborted), {found.kv_tokens} KV tokens"


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
