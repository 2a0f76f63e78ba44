"""``run`` and ``check``."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from loadline import app, solver
from loadline.cli import warmup
from loadline.cli.output import printable
from loadline.config import Config, describe, load, validate
from loadline.runtime.reload import Source

arguments = warmup.arguments


def run(options: argparse.Namespace) -> int:
    """Run the agent until it is told to stop."""

    def read() -> tuple[Config, list[str]]:
        config = _read(options)
        return config, _warnings(config)

    source = Source.at(options.config, read)
    config, warnings = source.read()
    for warning in warnings:
        print(printable(f"loadline: warning: {warning}"), file=sys.stderr)
    app.run(config, source)
    return 0


def check(options: argparse.Namespace) -> int:
    """Say what is wrong with a configuration, what looks wrong, and what it will do."""
    config = _read(options)
    warnings = [*_warnings(config), *_journal_warnings(config.journal.directory)]
    app.settings(config)  # reads the traces to start warm with: one that cannot be used is an error
    print(printable(describe(config)))
    for warning in warnings:
        print(printable(f"warning: {warning}"))
    print(f"{options.config}: valid, {len(warnings)} warning{'' if len(warnings) == 1 else 's'}")
    return 0


def _read(options: argparse.Namespace) -> Config:
    """The configuration, with what the command line says otherwise."""
    config = warmup.warmed(load(options.config), options)
    only = options.only or config.agent.only
    return replace(config, agent=replace(config.agent, only=only))


def _warnings(config: Config) -> list[str]:
    """What looks wrong, here where it is read."""
    scaling = [] if config.agent.only else [*warmup.warnings(config), *_solver_warnings(config)]
    return [*validate(config), *scaling]


def _solver_warnings(config: Config) -> Iterator[str]:
    """Whether whoever is to find the best allocation can; an agent goes on with the greedy one."""
    limited = config.allocation.capacity or any(one.gpu_quota for one in config.namespaces)
    if limited and config.allocation.solver == "exact" and not solver.available():
        yield (
            "allocation.solver: SciPy is not installed, so GPUs that are short are allocated greedily. "
            'pip install "loadline[solver]", or set it to "greedy".'
        )


def _journal_warnings(directory: str) -> Iterator[str]:
    """Whether whoever checks could write a journal there; an agent that cannot goes on without."""
    if not directory:
        return
    path = Path(directory).absolute()
    nearest = next(one for one in (path, *path.parents) if os.access(one, os.F_OK))
    if not nearest.is_dir():
        yield f"journal.directory: {directory} cannot be made, as {nearest} is no folder. Name another one."
    elif not os.access(nearest, os.W_OK | os.X_OK):
        yield f"journal.directory: you may not write to {nearest}. See to it that the agent may, or name another one."
