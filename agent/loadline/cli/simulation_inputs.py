"""What ``simulate`` and ``compare`` read, and the files that they write."""

import argparse
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from loadline import report
from loadline.cli import warmup
from loadline.cli.output import printable
from loadline.config import load, validate
from loadline.config.regular_file import os_error_text
from loadline.core.state.settings import Settings
from loadline.errors import ConfigError, DataError, LoadlineError
from loadline.runtime.settings import settings as settings_of
from loadline.sim.fleet import SimulatedFleetKnobs, model_of, pools_of, read_fleet
from loadline.traces import RateKnobs, Trace, read_trace

Command = Callable[[argparse.Namespace], int]
# 255 is the most that file systems take; a file is written under a longer name first.
_NAME_BYTES_MAX: Final = 230


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options that both commands have, but for ``--config``."""
    add = parser.add_argument
    add("--trace", type=Path, required=True, metavar="FILE", help="a request trace or a series of rates")
    add("--fleet", type=Path, required=True, metavar="FILE", help="engines, start-up times and routing, in TOML")
    add("--seed", type=int, default=0, metavar="N", help="of all that is drawn (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result as JSON")
    add("--html", type=Path, metavar="FILE", help="write a report with plots, as one page")
    add("--quiet", action="store_true", help="show no progress")
    warmup.arguments(parser)
    part = parser.add_argument_group("how much of the trace")
    part.add_argument("--start", type=float, default=0.0, metavar="S", help="begin so many seconds into it")
    part.add_argument("--duration", type=float, metavar="S", help="take so many seconds (default: to its end)")
    part.add_argument("--scale", type=float, default=1.0, metavar="X", help="times the load (default: 1)")
    rates = parser.add_argument_group("requests of a series of rates")
    rates.add_argument("--process", choices=("poisson", "gamma"), default="poisson", help="default: %(default)s")
    rates.add_argument("--cv", type=float, default=1.0, metavar="X", help="burstiness of gamma arrivals (default: 1)")
    rates.add_argument("--length-cv", type=float, default=1.0, metavar="X", help="spread of ISL and OSL (default: 1)")
    rates.add_argument("--isl-tokens", type=int, metavar="N", help="mean ISL where the series has none")
    rates.add_argument("--osl-tokens", type=int, metavar="N", help="mean OSL where the series has none")
    rates.add_argument("--gaps", choices=("error", "skip"), default="error", help="bins without data (default: error)")


def reports_input_errors(command: Command) -> Command:
    """The command, with exit code 2 and a sentence where an option or a file cannot be used."""

    @functools.wraps(command)
    def refused(options: argparse.Namespace) -> int:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that children are ended too
        try:
            return command(options)
        except (ConfigError, DataError) as error:
            print(f"loadline: {printable(str(error))}", file=sys.stderr)
            return 2

    return refused


def trace(options: argparse.Namespace) -> Trace:
    """The part of the trace that is wanted.

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
    """The fleet.

    Raises:
        ConfigError: The file cannot be used.
    """
    with _of(options.fleet):
        return read_fleet(options.fleet)


def settings(path: Path, options: argparse.Namespace, fleet_knobs: SimulatedFleetKnobs) -> Settings:
    """A configuration, with its warnings on stderr, that fits the fleet.

    Raises:
        ConfigError: The file cannot be used, or not with this fleet.
        DataError: A profile cannot be used.
    """
    with _of(path):
        config = warmup.warmed(load(path), options)
        for warning in (*validate(config), *warmup.warnings(config)):
            print(printable(f"loadline: warning: {path}: {warning}"), file=sys.stderr)
        found = settings_of(config)
    with _of(Path(f"{options.fleet} with {path}")):
        model = model_of(fleet_knobs, found)
        pools_of(fleet_knobs, model)
    if model.migration.enabled and fleet_knobs.migration is None:
        problem = "requests are to move, and the fleet has no table [migration], so none can"
        print(printable(f"loadline: warning: {options.fleet} with {path}: {problem}"), file=sys.stderr)
    return found


def knobs_text(found: Settings, fleet_knobs: SimulatedFleetKnobs) -> str:
    """What a run obeys, as JSON: the model's knobs with every default, and the fleet."""
    shown: dict[str, Struct] = {"model": model_of(fleet_knobs, found), "fleet": fleet_knobs}
    return msgspec.json.format(msgspec.json.encode(shown)).decode()


def check_outputs(options: argparse.Namespace, *read: Path) -> None:
    """Make sure that the results can be written, before they are computed, and not over what is read.

    Raises:
        ConfigError: A file cannot be written, or the report cannot be made.
    """
    taken = {path.resolve(): "a file that is read" for path in read}
    for option, path in (("--json", options.json), ("--html", options.html)):
        if path is None:
            continue
        if path.resolve() in taken:
            raise ConfigError(option, f"{path} is {taken[path.resolve()]}", "Name another file.")
        taken[path.resolve()] = f"the file of {option} too"
        if str(path) == "-" or len(path.name.encode()) > _NAME_BYTES_MAX:
            raise ConfigError(option, f"{path} is no name for a file", "Name a file, with a shorter name.")
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "not a regular file"  # such as a device, which would be replaced
            raise ConfigError(option, f"{path} is {what}", "Name a file.")
        try:
            _partial(path).touch()
            _partial(path).unlink()
        except OSError as error:
            problem = f"{path} cannot be written: {os_error_text(error)}"
            raise ConfigError(option, problem, "Name a file in another folder.") from error
    if options.html is not None and not report.available():
        remedy = "Install it: pip install 'loadline[plots]'."
        raise ConfigError("--html", "needs matplotlib, which is not installed", remedy)


def write(contents: Mapping[Path, bytes]) -> None:
    """Write files, each wholly or not at all.

    Raises:
        LoadlineError: One cannot be written any more.
    """
    for path, content in contents.items():
        partial = _partial(path)
        try:
            partial.write_bytes(content)
            partial.replace(path.resolve())
        except OSError as error:
            raise LoadlineError(
                f"{path} cannot be written: {os_error_text(error)}. Make room, or name another file."
            ) from error
        finally:
            partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """What a file is called until all of it is written."""
    return path.resolve().with_name(f".{path.resolve().name}.{os.getpid()}.partial")


@contextmanager
def _of(path: Path) -> Iterator[None]:
    """Name the file in what is said of its keys."""
    try:
        yield
    except ConfigError as error:
        if str(path) in error.place:
            raise
        raise ConfigError(f"{path}, {error.place}", error.problem, error.remedy) from error
