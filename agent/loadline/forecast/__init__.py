"""Series in, forecast out: ``forecast(question)``, in this very process and as long as it takes.

Whoever may not wait asks a ``Fitter`` (``loadline.ports``), which does the same in a child process with a deadline.
"""

from loadline.core.vocabulary.forecasts import History
from loadline.forecast.door import forecast, last_value
from loadline.forecast.history import Interval, binned, gathered
from loadline.forecast.packages import available, require

__all__ = ["History", "Interval", "available", "binned", "forecast", "gathered", "last_value", "require"]
