"""Load forecasts: ``forecast(query)`` runs in the calling process, without a time limit.

To forecast within a deadline, use a ``Fitter`` (``loadline.ports``), which runs it in a child process.
"""

from loadline.core.vocabulary.forecasts import History
from loadline.forecast.history import LoadInterval, bin_requests, merge_intervals
from loadline.forecast.packages import available
from loadline.forecast.predict import forecast, last_value
from loadline.forecast.scoring_time import ScoringTime

__all__ = [
    "History",
    "LoadInterval",
    "ScoringTime",
    "available",
    "bin_requests",
    "forecast",
    "last_value",
    "merge_intervals",
]
