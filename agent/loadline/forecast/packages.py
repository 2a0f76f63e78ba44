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


def require(knobs: ForecastKnobs) -> None:
    """Check that the packages of all configured predictors are installed.

    Raises:
        ConfigError: A package is not installed.
    """
    names = knobs.auto.candidates if knobs.predictor == "auto" else (knobs.predictor,)
    for name in names:
        if not available(name):
            package, extra = _NEEDED[name]
            raise ConfigError(
                "forecast.predictor",
                f"{name} needs the package {package}, which is not installed",
                f"Install it: pip install 'loadline[{extra}]'.",
            )
