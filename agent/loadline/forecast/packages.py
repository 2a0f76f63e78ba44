"""Packages of predictors, which their first fit imports."""

from importlib.util import find_spec
from typing import Final

from loadline.core.vocabulary.forecasts import AnyPredictor, ForecastKnobs, PredictorName

PACKAGES: Final[dict[AnyPredictor, str]] = {"kalman": "filterpy", "arima": "pmdarima", "prophet": "prophet"}
"""Package of each predictor that needs one."""


def available(name: AnyPredictor) -> bool:
    """Return True if the package of a predictor is installed, without importing it."""
    return name not in PACKAGES or find_spec(PACKAGES[name]) is not None


def configured_predictors(knobs: ForecastKnobs) -> tuple[str, tuple[PredictorName, ...]]:
    """Return the key that names the predictors, and their names."""
    if knobs.predictor == "auto":
        return "auto.candidates", knobs.auto.candidates
    return "predictor", (knobs.predictor,)
