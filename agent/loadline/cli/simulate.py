"""``simulate``: what would come of a configuration on a trace."""

import argparse
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadline import report
from loadline.cli import inputs, progress, show
from loadline.config import describe, load
from loadline.sim.simulation import Scenario
from loadline.sim.simulation import simulate as run


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``simulate``."""
    inputs.arguments(parser)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's configuration")


@inputs.refusing
def simulate(options: argparse.Namespace) -> int:
    """Play a trace to a simulated fleet and print what came of it."""
    inputs.check_outputs(options, options.trace, options.fleet, options.config)
    fleet = inputs.fleet(options)
    settings = inputs.settings(options.config, options, fleet)
    scenario = Scenario(options.config.stem, settings, fleet, inputs.trace(options), options.seed)
    with progress.shown(f"simulating {scenario.trace.name}", quiet=options.quiet) as on_progress:
        began_s = time.perf_counter()
        outcome = run(scenario, on_progress)
    outcome = replace(outcome, wall_s=time.perf_counter() - began_s)
    print(show.printable("\n".join(f"{name:<12}{text}" for name, text in report.results(outcome))))
    contents = {}
    if options.json is not None:
        contents[options.json] = msgspec.json.encode(outcome) + b"\n"
    if options.html is not None:
        configuration = f"{describe(load(options.config))}\n\n{inputs.knobs_text(settings, fleet)}"
        contents[options.html] = report.simulation_page(outcome, configuration, options.line).encode()
    inputs.write(contents)
    return 0
