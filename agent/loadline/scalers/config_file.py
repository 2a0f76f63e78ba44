"""Configuration files of scalers: TOML, where unknown keys are errors."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from loadline.errors import ConfigError

Shape = TypeVar("Shape")


def read_as(shape: type[Shape], path: Path, reference: str) -> Shape:
    """Read a TOML file.

    Args:
        shape: Struct of the file's content.
        path: The file.
        reference: Page with every key, for the remedy.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), shape)
    except OSError as error:
        raise ConfigError(str(path), f"it cannot be read: {error.strerror}", "Name a readable file.") from error
    except msgspec.ValidationError as error:
        place = re.search(r"`\$\.?(.*)`$", str(error))
        problem = str(error).split(" - at ")[0]
        raise ConfigError(place[1] if place else str(path), problem, f"See {reference} for every key.") from error
    except ValueError as error:
        raise ConfigError(str(path), f"it is not TOML: {error}", "Correct the line that it names.") from error


def check_unique(place: str, what: str, names: Iterable[str]) -> None:
    """Check that names differ.

    Raises:
        ConfigError: Two are the same.
    """
    listed = list(names)
    if len(set(listed)) < len(listed):
        raise ConfigError(place, f"two {what} have the same name", "Rename one.")
