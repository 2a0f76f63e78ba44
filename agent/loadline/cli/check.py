"""Command ``check``."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from loadline import app
from loadline.cli import warmup
from loadline.cli.configuration import configuration_warnings, load_configuration
from loadline.cli.output import plural, printable
from loadline.config import describe
from loadline.config.autoscalers import AUTOSCALERS_BYTES_MAX, read_autoscalers, tolerance_warnings
from loadline.errors import ConfigError
from loadline.toml.regular_file import open_regular, os_error_text


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``check``."""
    warmup.arguments(parser)
    parser.add_argument(
        "--autoscalers",
        metavar="FILE",
        help="also check HPAs and ScaledObjects: the output of `kubectl get hpa,scaledobjects -A -o json`; -: stdin",
    )


def check(options: argparse.Namespace) -> int:
    """Validate a configuration; print its description and its warnings."""
    config = load_configuration(options)
    warnings = [*configuration_warnings(config), *_journal_warnings(config.journal.directory)]
    if options.autoscalers:
        warnings += tolerance_warnings(config, read_autoscalers(_read(options.autoscalers)))
    app.settings(config)  # reads the warm-up traces: an unusable one is an error
    print(printable(describe(config)))
    for warning in warnings:
        print(printable(f"warning: {warning}"))
    print(f"{options.config}: valid, {plural(len(warnings), 'warning')}")
    return 0


def _read(name: str) -> bytes:
    """Return the content of a file, or of stdin for ``-``.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        with sys.stdin.buffer if name == "-" else open_regular(Path(name)) as file:
            return file.read(AUTOSCALERS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "--autoscalers", f"cannot be read: {os_error_text(error)}", "Give a readable file."
        ) from error


def _journal_warnings(directory: str) -> Iterator[str]:
    """Warn if this user cannot write the journal; an agent without write access runs without a journal."""
    if not directory:
        return
    path = Path(directory).absolute()
    nearest = next(one for one in (path, *path.parents) if os.access(one, os.F_OK))
    if not nearest.is_dir():
        yield f"journal.directory: {directory} cannot be created, since {nearest} is not a folder. Name another one."
    elif not os.access(nearest, os.W_OK | os.X_OK):
        yield f"journal.directory: this user may not write to {nearest}. Give the agent access, or name another one."
