"""Configuration as ``run`` and ``check`` load it: the file with the options of the command line."""

import argparse
from collections.abc import Iterator

from msgspec.structs import replace

from loadline import solver
from loadline.cli import warmup
from loadline.config import Config, load, validate


def load_configuration(options: argparse.Namespace) -> Config:
    """Load the configuration file and apply ``--only`` and the warm-up traces.

    Raises:
        ConfigError: The file or an option is invalid.
    """
    config = warmup.apply_option(load(options.config), options)
    only = options.only or config.agent.only
    return replace(config, agent=replace(config.agent, only=only))


def configuration_warnings(config: Config) -> list[str]:
    """Validate a configuration on this machine; return its warnings.

    Raises:
        ConfigError: The configuration is invalid.
    """
    scaling = [] if config.agent.only else [*warmup.warnings(config), *_solver_warnings(config)]
    return [*validate(config), *scaling]


def _solver_warnings(config: Config) -> Iterator[str]:
    """Warn if the exact solver is configured and not installed; the agent then uses the greedy one."""
    limited = config.allocation.capacity or any(one.gpu_quota for one in config.namespaces)
    if limited and config.allocation.solver == "exact" and not solver.available():
        yield (
            "allocation.solver: SciPy is not installed, so the greedy solver is used when GPUs are short. "
            'pip install "loadline[solver]", or set it to "greedy".'
        )
