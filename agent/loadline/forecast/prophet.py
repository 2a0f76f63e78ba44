"""Prophet predictor: a trend with daily and weekly seasons."""

import logging
import warnings

import numpy as np

from loadline.forecast.base import Prediction, PredictionTask, Values, error_quantile


def prophet(history: Values, task: PredictionTask) -> Prediction:
    """Fit the newest points; take the upper quantile from the errors of the fit.

    Prophet's own uncertainty is random and would differ between calls.
    """
    logging.getLogger("prophet.plot").disabled = True  # warns of a missing plot package
    import pandas  # noqa: PLC0415, ICN001 - comes with the extra
    from prophet import Prophet  # noqa: PLC0415 - an extra, and 2 s

    logging.getLogger("cmdstanpy").disabled = True  # logs every fit
    values = history[-task.knobs.prophet.points :]
    index = np.arange(values.size + task.steps) + (task.last_index + 1 - values.size)
    times = pandas.to_datetime(index * task.interval_ms, unit="ms")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings of pandas
        model = Prophet(uncertainty_samples=0)
        model.fit(pandas.DataFrame({"ds": times[: values.size], "y": values}), seed=1)
        fitted = model.predict(pandas.DataFrame({"ds": times}))["yhat"].to_numpy()
    mean = fitted[values.size :]
    return Prediction(mean, mean + error_quantile(values - fitted[: values.size], task.knobs.quantile))
