"""Inputs that ``simulate`` and ``compare`` share: trace, fleet and configurations."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from loadline.cli import output_files, warmup
from loadline.cli.output import printable
from loadline.cli.packages import check_scaling_packages
from loadline.config import load, validate
from loadline.core.state.settings import Settings
from loadline.errors import ConfigError
from loadline.runtime.settings import settings as settings_of
from loadline.sim.fleet import SimulatedFleetKnobs, model_of, pools_of, read_fleet
from loadline.traces import RateKnobs, Trace, read_trace


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that both commands have, except ``--config``."""
    add = parser.add_argument
    add("--trace", type=Path, required=True, metavar="FILE", help="request trace or rate series")
    add("--fleet", type=Path, required=True, metavar="FILE", help="engines, start-up times and routing (TOML)")
    add("--seed", type=int, default=0, metavar="N", help="seed of all random draws (default: %(default)s)")
    output_files.arguments(parser)
    add("--quiet", action="store_true", help="do not show progress")
    warmup.arguments(parser)
    window = parser.add_argument_group("trace window and scale")
    window.add_argument("--start", type=float, default=0.0, metavar="S", help="skip the first S seconds of the trace")
    window.add_argument("--duration", type=float, metavar="S", help="use S seconds of the trace (default: to its end)")
    window.add_argument("--scale", type=float, default=1.0, metavar="X", help="multiply the load by X (default: 1)")
    rates = parser.add_argument_group("requests drawn from a rate series")
    rates.add_argument(
        "--process", choices=("poisson", "gamma"), default="poisson", help="arrival process (default: %(default)s)"
    )
    rates.add_argument(
        "--cv", type=float, default=1.0, metavar="X", help="coefficient of variation of gamma arrivals (default: 1)"
    )
    rates.add_argument(
        "--length-cv", type=float, default=1.0, metavar="X", help="coefficient of variation of ISL and OSL (default: 1)"
    )
    rates.add_argument("--isl-tokens", type=int, metavar="N", help="mean ISL if the series has none")
    rates.add_argument("--osl-tokens", type=int, metavar="N", help="mean OSL if the series has none")
    rates.add_argument(
        "--gaps",
        choices=("error", "skip"),
        default="error",
        help="bins without data: fail, or count as empty (default: error)",
    )


def trace(options: argparse.Namespace) -> Trace:
    """Read the selected part of the trace.

    Raises:
        ConfigError: An option is out of its bounds.
        DataError: The file cannot be used.
    """
    knobs = RateKnobs(
        start_s=options.start,
        duration_s=options.duration,
        scale=options.scale,
        process=options.process,
        cv=options.cv,
        isl_tokens=options.isl_tokens,
        osl_tokens=options.osl_tokens,
        length_cv=options.length_cv,
        gaps=options.gaps,
    )
    try:
        return read_trace(options.trace, seed=options.seed, arrivals=knobs)
    except ConfigError as error:
        option = f"--{error.place.removesuffix('_s').replace('_', '-')}"
        raise ConfigError(option, error.problem, error.remedy) from error


def fleet(options: argparse.Namespace) -> SimulatedFleetKnobs:
    """Read the fleet file.

    Raises:
        ConfigError: The file cannot be used.
    """
    with _prefix_errors(options.fleet):
        return read_fleet(options.fleet)


def settings(path: Path, options: argparse.Namespace, fleet_knobs: SimulatedFleetKnobs) -> Settings:
    """Read a configuration that fits the fleet; print its warnings to stderr.

    Raises:
        ConfigError: The file cannot be used, or does not fit this fleet.
        DataError: A profile cannot be used.
    """
    with _prefix_errors(path):
        config = warmup.apply_option(load(path), options)
        for warning in (*validate(config), *warmup.warnings(config)):
            print(printable(f"loadline: warning: {path}: {warning}"), file=sys.stderr)
        check_scaling_packages(config)
        settings = settings_of(config)
    with _prefix_errors(Path(f"{options.fleet} with {path}")):
        model = model_of(fleet_knobs, settings)
        pools_of(fleet_knobs, model)
    if model.migration.enabled and fleet_knobs.migration is None:
        problem = "no request migrates, since the fleet has no table [migration]"
        print(printable(f"loadline: warning: {options.fleet} with {path}: {problem}"), file=sys.stderr)
    return settings


def knobs_text(settings: Settings, fleet_knobs: SimulatedFleetKnobs) -> str:
    """Format the effective knobs of a run as JSON: the model with every default, and the fleet."""
    shown: dict[str, Struct] = {"model": model_of(fleet_knobs, settings), "fleet": fleet_knobs}
    return msgspec.json.format(msgspec.json.encode(shown)).decode()


@contextmanager
def _prefix_errors(path: Path) -> Iterator[None]:
    """Name the file in configuration errors that do not."""
    try:
        yield
    except ConfigError as error:
        ConfigError.raise_all(
            one
            if one.where or str(path) in one.place
            else ConfigError(one.place, one.problem, one.remedy, where=str(path))
            for one in error.errors
        )
