"""Check that the packages of an extra are installed."""

from collections.abc import Sequence
from importlib.util import find_spec

from loadline.errors import ConfigError


def require_extra(place: str, name: str, packages: Sequence[str]) -> None:
    """Check that the packages of an extra, which has the name of the program that needs them, are installed.

    Raises:
        ConfigError: One is not.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError.missing_package(
                place, name, package, f"loadline-agent[{name}]", f"choose another {place}"
            )
