"""The page of one simulation."""

from loadline.report import charts, formatting
from loadline.report.page import card, code, facts, folded, grid, page, paragraph, section, table, tiles
from loadline.report.rows import results
from loadline.sim.result import SimulationResult

# A table of more rows is slow in a browser; a day with an action every ten seconds has so many.
ACTIONS_MAX = 5_000


def simulation_page(outcome: SimulationResult, configuration: str, command: str) -> str:
    """Everything about one simulation.

    Args:
        outcome: What came of it.
        configuration: The configuration and the fleet, as text.
        command: What reproduces it.

    Raises:
        LoadlineError: matplotlib is not installed.
    """
    lines = outcome.series
    subtitle = f"{outcome.model} on {outcome.trace}, the {outcome.planner} planner, seed {outcome.seed}"
    return page(
        f"loadline simulate: {outcome.name}",
        subtitle,
        [
            tiles(_first(outcome)),
            section("Results", facts(results(outcome))),
            section(
                "Load and latencies",
                grid(
                    [
                        card("Load", charts.load(outcome)),
                        card("Latencies by the time of arrival", charts.latencies(outcome)),
                    ]
                ),
            ),
            *(
                section(
                    f"Pool {pool.pool}" + (f" ({pool.role})" if pool.role != pool.pool else ""),
                    grid(
                        [
                            card("Workers wanted, ready, starting and draining", charts.workers(outcome, pool)),
                            card("Queue and KV cache", charts.busyness(outcome, pool)),
                        ]
                    ),
                )
                for pool in lines.pools
            ),
            section("Decisions", *_decisions(outcome)),
            section("Configuration", folded("Show the configuration and the fleet", code(configuration))),
            section("Reproduce", code(command), paragraph(f"Digest {outcome.digest}: the same seed gives the same.")),
        ],
    )


def _first(outcome: SimulationResult) -> list[tuple[str, str]]:
    met = outcome.attainment
    return [
        (formatting.percent(met.both), "met both objectives"),
        (formatting.percent(met.ttft), f"within TTFT {outcome.ttft_objective_ms:g} ms"),
        (formatting.percent(met.itl), f"within ITL {outcome.itl_objective_ms:g} ms"),
        (formatting.hours(outcome.gpu_hours), "GPU-hours"),
        (str(outcome.scaling_actions), "scaling actions"),
        (str(outcome.flaps), "flaps"),
        (str(outcome.requests), f"requests in {formatting.duration(outcome.duration_s)}"),
    ]


def _decisions(outcome: SimulationResult) -> list[str]:
    shown = outcome.actions[:ACTIONS_MAX]
    if not shown:
        return [paragraph("No decision changed a count.")]
    rows = [
        (
            formatting.clock(action.at_s),
            action.pool,
            f"{action.before} \N{RIGHTWARDS ARROW} {action.after}",
            ("flap: " if action.flap else "")
            + "; ".join(reason.removeprefix(f"{action.pool}: ") for reason in action.reasons),
        )
        for action in shown
    ]
    flaps = {place for place, action in enumerate(shown) if action.flap}
    found = [table(("time", "pool", "workers", "why"), rows, {0, 2}, flaps)]
    if len(outcome.actions) > len(shown):
        found.append(paragraph(f"The first {len(shown)} of {len(outcome.actions)}; the JSON result has all of them."))
    return found
