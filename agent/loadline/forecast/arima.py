"""ARIMA predictor by pmdarima, for a child process: the import takes 2 s and 150 MiB."""

import warnings
from functools import lru_cache
from math import log2
from typing import Any, Final

import numpy as np
from msgspec import Struct

from loadline.forecast.base import Prediction, PredictionRefused, PredictionTask, Values, interpolate_gaps

_ORDER_MAX: Final = 3  # maximum p and q: half an hour at intervals of ten minutes
_POINTS_MIN: Final = 24  # three for each of up to eight parameters
_ITERATIONS_MAX: Final = 10  # of a fit that compares orders: 0.3 s instead of 1 to 2 s, for mostly the same order
_CACHE_SIZE: Final = 1_024  # number of orders: three series of 300 models, 2 kB each


class _Order(Struct, frozen=True):
    """Order of a model, without its coefficients."""

    pdq: tuple[int, int, int]
    intercept: bool


def arima(history: Values, task: PredictionTask) -> Prediction:
    """Fit the coefficients on the newest points; choose the order once per block of ``order_intervals``.

    In the first block it is chosen whenever the number of points has doubled.

    Raises:
        PredictionRefused: There are too few points for the parameters.
    """
    knobs = task.knobs.arima
    values = interpolate_gaps(history)
    if values.size < _POINTS_MIN:
        raise PredictionRefused("points")
    since = (task.last_index + 1) % knobs.order_intervals  # intervals since the order was due
    older = values[: values.size - since]
    if older.size < _POINTS_MIN:
        older = values[: max(_POINTS_MIN, 2 ** int(log2(values.size)))]
    if np.ptp(older) == 0.0:
        older = values
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - as pmdarima, which needs it

    # On busy cores, choosing an order took 35 s with all threads and 1 s with one.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence warnings; the result is checked
        # The order depends on the values only, so that a restarted process gives the same answer.
        order = _choose_order(older[-knobs.points :].tobytes())
        model = _model(order).fit(values[-knobs.points :])
        mean, bounds = model.predict(task.steps, return_conf_int=True, alpha=2.0 * (1.0 - task.knobs.quantile))
    return Prediction(np.asarray(mean), np.asarray(bounds)[:, 1])


def _model(order: _Order) -> Any:
    from pmdarima import ARIMA  # noqa: PLC0415 - takes 2 s

    return ARIMA(order.pdq, with_intercept=order.intercept, suppress_warnings=True)


@lru_cache(maxsize=_CACHE_SIZE)
def _choose_order(values: bytes) -> _Order:
    from pmdarima import auto_arima  # noqa: PLC0415 - takes 2 s

    found = auto_arima(
        np.frombuffer(values),
        seasonal=False,
        max_p=_ORDER_MAX,
        max_q=_ORDER_MAX,
        maxiter=_ITERATIONS_MAX,
        error_action="ignore",
    )
    return _Order(found.order, found.with_intercept)
