"""Check that the packages which a configuration needs can be imported.

Otherwise only fallbacks would work: forecasts would be the last value, and GPUs would be divided greedily.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Final

from msgspec import Struct

from loadline.adapters import nats_logins
from loadline.cli.extras import require_extra
from loadline.config import Config
from loadline.config.layers import sources_of
from loadline.core.planning.planners import PLANNERS
from loadline.core.vocabulary.forecasts import ForecastKnobs
from loadline.errors import ConfigError
from loadline.forecast.packages import PACKAGES, configured_predictors

_MODULES: Final = {"filterpy": "filterpy.kalman", "scipy": "scipy.optimize"}
"""Modules that are used, of packages which import nothing themselves."""
_REQUIREMENTS: Final = {"prophet": "loadline-agent[prophet]"}
_IMPORT_S: Final = 60.0  # pmdarima takes 2 s, and 20 s on a busy machine
# Prints what it imports, so that a module is known even if its import ends the process.
_IMPORTER: Final = (
    "import importlib, sys\nfor name in sys.argv[1:]: print(name, flush=True), importlib.import_module(name)"
)


class NeededPackage(Struct, frozen=True):
    """A package that a value of the configuration needs."""

    place: str
    value: str
    package: str
    instead: str
    """Alternative to its installation."""


def check_packages(config: Config) -> None:
    """Check the packages of logins, predictors and the solver.

    Raises:
        ConfigError: A package is not installed, or its import fails.
    """
    nats_logins.require_packages(config.nats)
    if config.otel.traces:
        require_extra("otel.traces", "otel", ["opentelemetry"])
    if config.tensorboard.log_dir:
        require_extra("tensorboard.log_dir", "tensorboard", ["tensorboardX"])
    check_scaling_packages(config)


def check_scaling_packages(config: Config) -> None:
    """Check the packages of predictors and the solver, which simulations need too.

    Raises:
        ConfigError: A package is not installed, or its import fails.
    """
    if not config.agent.only:
        require([*_forecast_packages(config), *_solver_packages(config)])


def predictor_packages(knobs: ForecastKnobs, place: str = "forecast") -> Iterator[NeededPackage]:
    """Yield the packages of all predictors of the knobs at ``place``."""
    key, names = configured_predictors(knobs)
    for name in names:
        if name in PACKAGES:
            yield NeededPackage(f"{place}.{key}", name, PACKAGES[name], "choose another predictor")


def require(needed: list[NeededPackage]) -> None:
    """Check that packages can be imported: another process imports them, as they take 2 s and 240 MB.

    Raises:
        ConfigError: A package is not installed, or its import fails.
    """
    for one in needed:
        if find_spec(one.package) is None:
            requirement = _REQUIREMENTS.get(one.package, one.package)
            raise ConfigError.missing_package(one.place, one.value, one.package, requirement, one.instead)
    modules = {_MODULES.get(one.package, one.package): one for one in needed}
    try:
        _import_elsewhere(tuple(sorted(modules)))
    except _ImportFailed as failed:
        one = modules[failed.module]
        raise ConfigError.broken_package(one.place, one.value, one.package, str(failed), one.instead) from failed


class _ImportFailed(Exception):
    def __init__(self, module: str, error: str) -> None:
        super().__init__(error)
        self.module = module


@cache
def _import_elsewhere(modules: tuple[str, ...]) -> None:
    """Import modules in another process; a success is remembered, a failure is tried again."""
    if not modules:
        return
    command = [sys.executable, "-c", _IMPORTER, *modules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_S, check=False)  # noqa: S603 - our own
    except subprocess.TimeoutExpired as late:
        raise _ImportFailed(
            _last_line(late.stdout) or modules[0],
            f"it takes more than {_IMPORT_S:.0f} s. Try again if the machine is busy",
        ) from late
    if done.returncode:
        error = _last_line(done.stderr) or f"exit status {done.returncode}"
        raise _ImportFailed(_last_line(done.stdout) or modules[0], error)


def _last_line(text: str | bytes | None) -> str:
    lines = (text.decode() if isinstance(text, bytes) else text or "").splitlines()
    return lines[-1] if lines else ""


def _forecast_packages(config: Config) -> Iterator[NeededPackage]:
    for index, model in enumerate(config.models):
        planner = PLANNERS[model.planner]
        traffic = planner.traffic_knobs(model.knobs)
        if traffic is not None:
            parts = [part.name for part in planner.composed_of if getattr(model.knobs, part.name) is traffic]
            place = ".".join([f"models[{index}]", model.planner, *parts, "forecast"])
            for one in predictor_packages(traffic.forecast, place):
                yield NeededPackage(sources_of(config).shown_place(one.place), one.value, one.package, one.instead)


def _solver_packages(config: Config) -> Iterator[NeededPackage]:
    limited = config.allocation.capacity or any(one.gpu_quota for one in config.namespaces)
    if limited and config.allocation.solver == "exact":
        yield NeededPackage("allocation.solver", "exact", "scipy", 'set it to "greedy"')
