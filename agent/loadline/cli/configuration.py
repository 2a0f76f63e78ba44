"""Configuration as ``run`` and ``check`` load it: the file with the options of the command line."""

import argparse

from msgspec.structs import replace

from loadline.cli import warmup
from loadline.cli.packages import check_packages
from loadline.config import Config, load, validate
from loadline.config.layers import sources_of


def load_configuration(options: argparse.Namespace) -> Config:
    """Load the configuration file and apply ``--only`` and the warm-up traces.

    Raises:
        ConfigError: The file or an option is invalid.
    """
    config = warmup.apply_option(load(options.config), options)
    only = options.only or config.agent.only
    return replace(config, agent=replace(config.agent, only=only))


def configuration_warnings(config: Config) -> list[str]:
    """Validate a configuration on this machine; return its warnings, each with file and line.

    Raises:
        ConfigError: The configuration is invalid, or needs a package that is not installed.
    """
    warnings = [*validate(config), *([] if config.agent.only else warmup.warnings(config))]
    check_packages(config)
    return [located(config, warning) for warning in warnings]


def located(config: Config, warning: str) -> str:
    """Return a warning, which begins with the place of a value, with the file and line of it."""
    place = warning.partition(": ")[0].partition(" (of ")[0]
    return f"{sources_of(config).file.where(place)}: {warning}"
