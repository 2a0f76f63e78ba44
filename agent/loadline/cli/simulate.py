"""Command ``simulate``: a configuration on a trace, in virtual time."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadline import report
from loadline.adapters.file_journal import FileJournal
from loadline.cli import output, progress, simulation_inputs
from loadline.cli.output_files import check_output_files, write_files
from loadline.config import describe, load
from loadline.config.knobs import JournalKnobs
from loadline.errors import ConfigError, JournalError
from loadline.ports import Journal
from loadline.sim.result import SimulationResult
from loadline.sim.simulation import Scenario
from loadline.sim.simulation import simulate as run


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``simulate``."""
    simulation_inputs.arguments(parser)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration of the agent (TOML)")
    parser.add_argument(
        "--journal", type=Path, metavar="DIRECTORY", help="write the journal of the agent for `replay` and `explain`"
    )


def simulate(options: argparse.Namespace) -> int:
    """Run a trace on a simulated fleet and print the results."""
    check_output_files(options, options.trace, options.fleet, options.config)
    fleet = simulation_inputs.fleet(options)
    settings = simulation_inputs.settings(options.config, options, fleet)
    scenario = Scenario(options.config.stem, settings, fleet, simulation_inputs.trace(options), options.seed)
    with _journal(options.journal) as journal:
        what, length_s = f"simulating {scenario.trace.name}", scenario.trace.duration_s
        with progress.progress_display(what, "simulated s", quiet=options.quiet) as on_progress:
            began_s = time.perf_counter()
            outcome = run(scenario, lambda part: on_progress(part * length_s, length_s), journal)
        _write_results(options, scenario, replace(outcome, wall_s=time.perf_counter() - began_s))
    return 0


def _write_results(options: argparse.Namespace, scenario: Scenario, outcome: SimulationResult) -> None:
    """Print the results and write the result files."""
    text = "\n".join(f"{name:<12}{text}" for name, text in report.result_rows(outcome))
    output.print_result(options, outcome, text)
    contents = {}
    if options.json is not None:
        contents[options.json] = msgspec.json.encode(outcome) + b"\n"
    if options.html is not None:
        configuration = (
            f"{describe(load(options.config))}\n\n{simulation_inputs.knobs_text(scenario.settings, scenario.fleet)}"
        )
        contents[options.html] = report.simulation_page(outcome, configuration, options.line).encode()
    write_files(contents)


@contextmanager
def _journal(directory: Path | None) -> Iterator[Journal | None]:
    """Open a journal in a new folder; records wait in memory, so that the simulation never waits for the disk.

    Raises:
        ConfigError: The folder cannot be created, or is not empty.
        JournalError: Some records could not be written.
    """
    if directory is None:
        yield None
        return
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigError("--journal", f"{directory} is not empty", "Name a new folder.")
    except OSError as error:
        problem = f"{directory} cannot be created: {error.strerror}"
        raise ConfigError("--journal", problem, "Name a new folder.") from error
    journal = FileJournal(
        directory, JournalKnobs().segment_bytes_max, bytes_max=sys.maxsize, queue_bytes_max=sys.maxsize
    )
    try:
        yield journal
    finally:
        journal.close()
    if journal.lost:
        raise JournalError(f"{directory}: {journal.lost} records could not be written. Is the disk full?")
