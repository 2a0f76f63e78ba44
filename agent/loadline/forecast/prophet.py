"""Prophet: a trend with daily and weekly seasons."""

import logging
import warnings

import numpy as np

from loadline.forecast.base import Prediction, PredictionTask, Values, error_quantile


def prophet(history: Values, task: PredictionTask) -> Prediction:
    """Fit the newest points; the upper quantile is that of the errors of the fit.

    Its own uncertainty is drawn at random, and would be another one at every call.
    """
    logging.getLogger("prophet.plot").disabled = True  # it misses a package for plots that are not made
    import pandas  # noqa: PLC0415, ICN001 - comes with the extra; the name says what it is
    from prophet import Prophet  # noqa: PLC0415 - an extra, and 2 s

    logging.getLogger("cmdstanpy").disabled = True  # it tells of every fit
    values = history[-task.knobs.prophet.points :]
    index = np.arange(values.size + task.steps) + (task.last_index + 1 - values.size)
    times = pandas.to_datetime(index * task.interval_ms, unit="ms")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses pandas in ways that pandas warns of
        model = Prophet(uncertainty_samples=0)
        model.fit(pandas.DataFrame({"ds": times[: values.size], "y": values}), seed=1)
        fitted = model.predict(pandas.DataFrame({"ds": times}))["yhat"].to_numpy()
    mean = fitted[values.size :]
    return Prediction(mean, mean + error_quantile(values - fitted[: values.size], task.knobs.quantile))
