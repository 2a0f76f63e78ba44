"""Text output of ``loadline explain``."""

from collections.abc import Sequence

from loadline.cli.output import timestamp
from loadline.core.migration.outcomes import PolicyReport, sentence
from loadline.core.vocabulary.reasons import Explanation, SizeEstimate


def format_explanation(found: Explanation) -> str:
    """Format a decision or a hold: inputs, recommendations, limits and result."""
    title = f"{found.model}: {found.outcome} at {timestamp(found.at_ms, 'milliseconds')}" + (
        f", decision {found.decision_id}" if found.decision_id else ""
    )
    lines = [title]
    for one in found.recommendations:
        lines.append("  inputs")
        lines += [f"    {name} = {value:g}" for name, value in sorted(one.inputs.items())]
        lines += _estimate_lines(one.estimates)
        targets = ", ".join(f"{pool} {count}" for pool, count in one.targets.items()) or "no change"
        lines.append(f"  the {one.planner} planner recommends {targets}")
        lines += [f"    {reason.sentence()}" for reason in one.reasons]
    lines.append("  limits" if found.limits else "  no limit applied")
    lines += [f"    {reason.sentence()}" for reason in found.limits]
    changes = (f"{pool} {found.current[pool]} -> {count}" for pool, count in found.targets.items())
    lines.append(f"  result: {', '.join(changes)}")
    if found.superseded_by:
        lines.append(f"  no scaler accepted it before decision {found.superseded_by} took its place")
    return "\n".join(lines)


def _estimate_lines(estimates: Sequence[SizeEstimate]) -> list[str]:
    """Return a table of the workers that each estimator needs, its confidence and what it knows that from."""
    if not estimates:
        return []
    rows = [("pool", "estimator", "workers", "confidence", "from")]
    for one in estimates:
        workers = "-" if one.workers is None else f"{one.workers:.2f}"
        rows.append(
            (one.pool, one.estimator, workers, "-" if one.confidence is None else f"{one.confidence:.2f}", one.basis)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    table = [
        "    " + "  ".join((*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[4]))
        for row in rows
    ]
    return ["  estimates", *table]


def format_policy_report(found: PolicyReport) -> str:
    """Format the last report of a migration policy on a group of workers, with the outcome of each pair."""
    return "\n".join(
        [
            f"{found.model}: {found.policy} of {found.group} at {timestamp(found.at_ms, 'milliseconds')}",
            f"  {sentence(found.code, found.numbers)}",
            f"  possible sources: {found.sources}, possible destinations: {found.destinations}",
            *(f"    {pair.source} -> {pair.destination}: {sentence(pair.code, pair.numbers)}" for pair in found.pairs),
        ]
    )
