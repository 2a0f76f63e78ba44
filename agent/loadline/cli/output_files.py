"""Result files of commands: checked before the work, written whole or not at all."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from loadline import report
from loadline.cli import output
from loadline.errors import ConfigError, LoadlineError
from loadline.toml.regular_file import os_error_text

# File systems allow 255 bytes; the partial file has a longer name.
_NAME_BYTES_MAX: Final = 230


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--output``, ``--json`` and ``--html``."""
    output.arguments(parser, alias=False)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots as a single HTML page")


def check_output_files(options: argparse.Namespace, *inputs: Path) -> None:
    """Check, before the work, that the result files can be written and are not input files.

    Raises:
        ConfigError: A file cannot be written, or the report cannot be made.
    """
    uses = {path.resolve(): "an input file" for path in inputs}
    for option, path in (("--json", options.json), ("--html", options.html)):
        if path is None:
            continue
        check_replaceable(option, path, uses)
        uses[path.resolve()] = f"also the file of {option}"
        try:
            partial_path(path).touch()
            partial_path(path).unlink()
        except OSError as error:
            problem = f"{path} cannot be written: {os_error_text(error)}"
            raise ConfigError(option, problem, "Name a file in another folder.") from error
    if options.html is not None and not report.available():
        raise ConfigError.missing_package(
            "--html", "a page with plots", "matplotlib", "loadline-agent[plots]", "omit it"
        )


def check_replaceable(option: str, path: Path, uses: Mapping[Path, str]) -> None:
    """Check that a result may replace what has its name: a file is written beside it and renamed, also over a device.

    Args:
        option: Option that names the file.
        path: File to write.
        uses: Uses of the files that must stay, by resolved path.

    Raises:
        ConfigError: The file is used otherwise, or is no regular file.
    """
    if path.resolve() in uses:
        raise ConfigError(option, f"{path} is {uses[path.resolve()]}", "Name another file.")
    if str(path) == "-" or len(path.name.encode()) > _NAME_BYTES_MAX:
        raise ConfigError(option, f"{path} is not a usable file name", "Name a file, with a shorter name.")
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise ConfigError(option, f"{path} is {kind}", "Name a file.")


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files, each whole or not at all.

    Raises:
        LoadlineError: A file cannot be written.
    """
    for path, content in contents.items():
        partial = partial_path(path)
        try:
            partial.write_bytes(content)
            partial.replace(path.resolve())
        except OSError as error:
            problem = f"{path} cannot be written: {os_error_text(error)}"
            raise LoadlineError(f"{problem}. Free some space, or name another file.") from error
        finally:
            partial.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """Return the name of a file until it is complete."""
    return path.resolve().with_name(f".{path.resolve().name}.{os.getpid()}.partial")
