"""Series in, forecast out: ``forecast(question)``, in this very process and as long as it takes.

Whoever may not wait asks a ``Fitter`` (``loadline.ports``), which does the same in a child process with a deadline.
"""

from loadline.core.vocabulary.forecasts import History
from loadline.forecast.history import LoadInterval, bin_requests, merge_intervals
from loadline.forecast.packages import available, require
from loadline.forecast.predict import forecast, last_value

__all__ = [
    "History",
    "LoadInterval",
    "available",
    "bin_requests",
    "forecast",
    "last_value",
    "merge_intervals",
    "require",
]
