"""Check that the optional packages which a configuration needs are installed."""

from loadline import solver
from loadline.adapters import nats_logins
from loadline.config import Config
from loadline.config.layers import origin_place, origins_of
from loadline.core.planning.planners import PLANNERS
from loadline.errors import ConfigError
from loadline.forecast import require


def check_packages(config: Config) -> None:
    """Check the packages of logins, predictors and the solver. Otherwise only the fallbacks would work, and no login.

    Raises:
        ConfigError: A package is not installed.
    """
    nats_logins.require_packages(config.nats)
    check_scaling_packages(config)


def check_scaling_packages(config: Config) -> None:
    """Check the packages of predictors and the solver, which simulations need too.

    Raises:
        ConfigError: A package is not installed.
    """
    if config.agent.only:
        return
    for index, model in enumerate(config.models):
        planner = PLANNERS[model.planner]
        traffic = planner.traffic_knobs(model.knobs)
        if traffic is not None:
            parts = [part.name for part in planner.composed_of if getattr(model.knobs, part.name) is traffic]
            place = ".".join([f"models[{index}]", model.planner, *parts, "forecast"])
            try:
                require(traffic.forecast, place)
            except ConfigError as error:
                raise ConfigError(origin_place(error.place, origins_of(config)), error.problem, error.remedy) from error
    limited = config.allocation.capacity or any(one.gpu_quota for one in config.namespaces)
    if limited and config.allocation.solver == "exact" and not solver.available():
        raise ConfigError.missing_package("allocation.solver", "exact", "scipy", "solver", 'set it to "greedy"')
