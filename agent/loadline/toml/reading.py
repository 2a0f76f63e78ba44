"""Reading of TOML files. Errors name the place and the remedy."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from loadline.errors import ConfigError
from loadline.toml.regular_file import open_regular, os_error_text

FILE_BYTES_MAX: Final = 1_048_576
# Our deepest key has 4 parts. The parser's memory grows with their square: 20,000 parts take 1.6 GB.
_KEY_PARTS_MAX: Final = 32
_KEY_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_LONG_KEY: Final = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_KEY_PART}[ \t]*\.[ \t]*){{{_KEY_PARTS_MAX}}}")


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: It cannot be read.
    """
    return parse_table(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: It cannot be read, is too large, or is not UTF-8.
    """
    try:
        with open_regular(path) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            str(path), f"cannot be read: {os_error_text(error)}", "Give the path of a TOML file."
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(str(path), f"is larger than {FILE_BYTES_MAX} bytes", "Give the path of a TOML file.")
    try:
        return data.decode("utf-8-sig")  # Notepad begins a file with a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}", "is not UTF-8", "Save the file as UTF-8.") from error


def parse_table(text: str, name: str) -> dict[str, Any]:
    """Parse TOML text; errors refer to it as ``name``.

    Raises:
        ConfigError: It is not TOML.
    """
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError(f"{name}, line {line}", f"has a key of more than {_KEY_PARTS_MAX} parts", "Shorten the key.")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{name}, line {place[1]}, column {place[2]}" if place else f"{name}, line {len(text.splitlines())}"
        problem = str(error).partition(" (at ")[0]
        raise ConfigError(
            where, f"is not TOML: {problem}", "Correct the line; https://toml.io describes the format."
        ) from error
    except RecursionError as error:
        raise ConfigError(name, "is nested too deeply", "Write a flat file of sections and keys.") from error
