"""What was forecast of the intervals to come. A model has one question open at a time, however long a fit takes."""

from msgspec import Struct, field

from loadline.core.planning.planner import ForecastRequest
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery
from loadline.core.vocabulary.reasons import Reason, ReasonCode


class PendingForecast(Struct):
    """The newest forecasts, and the open question."""

    forecasts: list[Forecast | None] = field(default_factory=list)
    """Requests, ISL and OSL; empty where there is no forecast."""
    begins_ms: int = -1
    """When the first interval that they are of begins, or began; -1 before the first answer."""
    is_unread: bool = False
    """An answer has come that was not looked at."""
    notes: list[Reason] = field(default_factory=list)
    """What is wrong with them."""
    request: int = 0
    waiting: bool = False
    """For the answer to ``request``."""
    asked_ms: int = -1
    """When the first interval begins that ``request`` asks for."""
    unsent: ForecastRequest | None = None

    def request_forecasts(self, questions: list[ForecastQuery]) -> None:
        """Ask these, unless an answer is still to come: a slow predictor is asked less often."""
        if self.waiting:
            return
        self.request, self.waiting, self.asked_ms = self.request + 1, True, questions[0].series.end_ms
        self.unsent = ForecastRequest(self.request, questions)

    def forecast_request(self) -> ForecastRequest | None:
        """What was asked and not sent yet."""
        unsent, self.unsent = self.unsent, None
        return unsent

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        """The answer to the open question; others are late."""
        if not self.waiting or answer.request != self.request:
            return
        self.waiting, self.is_unread, self.begins_ms, self.notes = False, True, self.asked_ms, []
        if isinstance(answer, ForecastFailed):
            self.forecasts = []
            self.notes = [Reason(ReasonCode.FORECAST_FALLBACK, detail=answer.detail)]
            return
        self.forecasts = answer.forecasts
        used = next(iter(answer.forecasts), None)
        if used is not None and used.fallback in {"failed", "not_finite", "absurd", "late", "away"}:
            self.notes = [Reason(ReasonCode.FORECAST_FALLBACK, detail=used.detail or used.fallback)]

    def ahead(self, now: int, ahead_ms: int, interval_ms: int) -> tuple[int, int]:
        """Numbers of the first and of the last of their intervals from ``now`` until ``ahead_ms`` later."""
        return (now - self.begins_ms) // interval_ms, (now + ahead_ms - 1 - self.begins_ms) // interval_ms
