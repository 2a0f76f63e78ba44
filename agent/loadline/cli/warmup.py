"""Option ``--load-predictor-warmup-trace``: recorded load that is the history of the first forecasts."""

import argparse
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadline.config import Config
from loadline.core.planning.planners import PLANNERS
from loadline.errors import ConfigError, DataError
from loadline.traces.models import models_of

OPTION: Final = "--load-predictor-warmup-trace"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        OPTION,
        dest="warmup",
        action="append",
        default=[],
        metavar="[MODEL=]FILE",
        help="trace of past load, used as history for the first forecasts; give the option once per model",
    )


def apply_option(config: Config, options: argparse.Namespace) -> Config:
    """Replace the warm-up traces of the configuration with those of the option.

    Raises:
        ConfigError: A model is unknown, named twice or ambiguous, or its planner does not forecast.
    """
    planners = {model.name: model.planner for model in config.models}
    traces: dict[str, str] = {}
    for text in options.warmup:
        name, file = _model_and_file(text, planners)
        if name in traces:
            raise ConfigError(OPTION, f"names model {name} twice", "Name one trace for each model.")
        if planners[name] in PLANNERS and not _has_history(planners[name]):
            problem = f"the {planners[name]} planner of model {name} does not forecast"
            forecasting = ", ".join(sorted(filter(_has_history, PLANNERS)))
            raise ConfigError(OPTION, problem, f"Choose one of the planners {forecasting}, or omit the option.")
        traces[name] = file
    models = (
        replace(model, load_predictor_warmup_trace=traces.get(model.name, model.load_predictor_warmup_trace))
        for model in config.models
    )
    return replace(config, models=tuple(models))


def warnings(config: Config) -> Iterator[str]:
    """Warn of traces with requests of several models, all of which count as the load of one."""
    for model in config.models:
        path = model.load_predictor_warmup_trace
        names: tuple[str, ...] = ()
        if path:
            with suppress(DataError):  # reported when the trace is loaded
                names = tuple(islice(models_of(Path(path)), 2))
        if len(names) > 1:
            yield (
                f"load_predictor_warmup_trace of model {model.name}: {path} has requests of several models, such as "
                f"{names[0]} and {names[1]}, and all of them count as its load. Keep the rows of one."
            )


def _model_and_file(text: str, planners: dict[str, str]) -> tuple[str, str]:
    """Split the value of the option into model and file; without a model, find the one that forecasts."""
    name, equals, file = text.partition("=")
    if equals and name in planners:
        return name, file
    if equals and not Path(text).exists():  # a file name may contain =, too
        raise ConfigError(OPTION, f"{name!r} is not a model", f"Known are: {', '.join(sorted(planners))}.")
    forecasting = sorted(name for name, planner in planners.items() if _has_history(planner))
    if len(forecasting) > 1:
        remedy = f"Write MODEL={text}, once per model."
        raise ConfigError(OPTION, f"{text} may belong to {' or '.join(forecasting)}", remedy)
    return (forecasting or sorted(planners))[0], text  # the caller reports a model that does not forecast


def _has_history(planner: str) -> bool:
    return planner in PLANNERS and PLANNERS[planner].needs.history
