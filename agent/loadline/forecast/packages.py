"""Availability of predictors, some of which need extras."""

from importlib.util import find_spec
from typing import Final

from loadline.core.vocabulary.forecasts import AnyPredictor, ForecastKnobs
from loadline.errors import ConfigError

_NEEDED: Final[dict[AnyPredictor, tuple[str, str]]] = {
    "kalman": ("filterpy", "kalman"),
    "arima": ("pmdarima", "arima"),
    "prophet": ("prophet", "prophet"),
}


def available(name: AnyPredictor) -> bool:
    """Return whether the package of a predictor is installed, without importing it."""
    return name not in _NEEDED or find_spec(_NEEDED[name][0]) is not None


def require(knobs: ForecastKnobs, place: str = "forecast") -> None:
    """Check that the packages of all predictors of the knobs at ``place`` are installed.

    Raises:
        ConfigError: A package is not installed.
    """
    selects = knobs.predictor == "auto"
    for name in knobs.auto.candidates if selects else (knobs.predictor,):
        if not available(name):
            key = "auto.candidates" if selects else "predictor"
            raise ConfigError.missing_package(f"{place}.{key}", name, *_NEEDED[name], "choose another predictor")
