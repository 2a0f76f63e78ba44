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
        require_package(place, name, package, name, f"choose another {place}")


def require_package(place: str, value: str, package: str, extra: str, instead: str) -> None:
    """Check that a package of an extra is installed.

    Raises:
        ConfigError: It is not.
    """
    if find_spec(package) is None:
        raise ConfigError.missing_package(place, value, package, f"loadline-agent[{extra}]", instead)
