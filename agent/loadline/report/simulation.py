"""Page of one simulation."""

from loadline import formatting
from loadline.report import charts
from loadline.report.page import card, code, facts, folded, grid, page, paragraph, section, table, tiles
from loadline.report.rows import result_rows
from loadline.sim.result import SimulationResult

# Browsers render longer tables slowly; a day with an action every ten seconds has 8,640.
ACTIONS_MAX = 5_000


def simulation_page(outcome: SimulationResult, configuration: str, command: str) -> str:
    """Build the page of one simulation.

    Args:
        outcome: Results of the simulation.
        configuration: Configuration and fleet as text.
        command: Command line that reproduces it.

    Raises:
        LoadlineError: matplotlib is not installed.
    """
    lines = outcome.series
    subtitle = f"{outcome.model} on {outcome.trace}, {outcome.planner} planner, seed {outcome.seed}"
    return page(
        f"loadline simulate: {outcome.name}",
        subtitle,
        [
            tiles(_headlines(outcome)),
            section("Results", facts(result_rows(outcome))),
            section(
                "Load and latencies",
                grid(
                    [
                        card("Load", charts.load(outcome)),
                        card("Latencies by arrival time", charts.latencies(outcome)),
                    ]
                ),
            ),
            *(
                section(
                    f"Pool {pool.pool}" + (f" ({pool.role})" if pool.role != pool.pool else ""),
                    grid(
                        [
                            card("Workers desired, ready, starting and draining", charts.workers(outcome, pool)),
                            card("Queue and KV cache", charts.occupancy(outcome, pool)),
                        ]
                    ),
                )
                for pool in lines.pools
            ),
            section("Decisions", *_decisions(outcome)),
            section("Configuration", folded("Show the configuration and the fleet", code(configuration))),
            section(
                "Reproduce",
                code(command),
                paragraph(f"Digest: {outcome.digest}. The same inputs and seed give the same digest."),
            ),
        ],
    )


def _headlines(outcome: SimulationResult) -> list[tuple[str, str]]:
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
        return [paragraph("No decision changed a worker count.")]
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
    found = [table(("time", "pool", "workers", "reasons"), rows, {0, 2}, flaps)]
    if len(outcome.actions) > len(shown):
        found.append(paragraph(f"The first {len(shown)} of {len(outcome.actions)} decisions; the JSON result has all."))
    return found
