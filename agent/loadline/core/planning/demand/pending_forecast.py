"""Forecasts of the next intervals; a model has at most one pending forecast request."""

from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.planning.planner import ForecastRequest
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery, failed
from loadline.core.vocabulary.reasons import Reason, ReasonCode


class PendingForecast(Struct):
    """Newest forecasts, and the pending request."""

    forecasts: list[Forecast | None] = field(default_factory=list)
    """Forecasts of requests, ISL and OSL; empty without a forecast."""
    begins_ms: int = -1
    """Start of the first forecast interval, Unix ms; -1 before the first answer."""
    is_unread: bool = False
    """True if pools have not been sized for the newest answer yet."""
    notes: list[Reason] = field(default_factory=list)
    """Reasons for other values than those of the predictor."""
    request: int = 0
    """Number of the newest request."""
    is_pending: bool = False
    """True until ``request`` is answered."""
    pending_begins_ms: int = -1
    """Start of the first interval of ``request``, Unix ms."""
    unsent: ForecastRequest | None = None
    """Request that was not returned by ``forecast_request`` yet."""

    def request_forecasts(self, queries: list[ForecastQuery]) -> None:
        """Create a request, unless one is pending; so a slow predictor gets fewer requests."""
        if self.is_pending:
            return
        self.request, self.is_pending, self.pending_begins_ms = self.request + 1, True, queries[0].series.end_ms
        self.unsent = ForecastRequest(self.request, queries)

    def forecast_request(self) -> ForecastRequest | None:
        """Return the unsent request, once; None if there is none."""
        unsent, self.unsent = self.unsent, None
        return unsent

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        """Record the answer to the pending request; ignore outdated answers."""
        if not self.is_pending or answer.request != self.request:
            return
        self.is_pending, self.is_unread, self.begins_ms, self.notes = False, True, self.pending_begins_ms, []
        if isinstance(answer, ForecastFailed):
            self.forecasts = []
            self.notes = [Reason(ReasonCode.FORECAST_FALLBACK, detail=answer.detail)]
            return
        self.forecasts = answer.forecasts
        lost = failed(answer.forecasts)
        if lost:
            self.notes = [Reason(ReasonCode.FORECAST_FALLBACK, detail=lost[0].detail or lost[0].fallback)]

    def raise_lengths(self, isl_tokens: float, osl_tokens: float) -> None:
        """Raise the forecast lengths to these minimums, with a reason: trends fall below 0, and lengths do not.

        An OSL that had fallen to 70 tokens was forecast as 0, which needs no decode worker. For an ISL of 0.01 tokens,
        each usual prompt of 500 counted as 50,000 requests, and 2 prefill workers became 15,001.
        """
        for at, tokens_min in enumerate((isl_tokens, osl_tokens), start=1):
            forecast = self.forecasts[at] if at < len(self.forecasts) else None
            if forecast is None or min(forecast.mean) >= tokens_min:
                continue
            mean, upper = ([max(tokens, tokens_min) for tokens in part] for part in (forecast.mean, forecast.upper))
            self.forecasts[at] = replace(forecast, mean=tuple(mean), upper=tuple(upper))
            numbers = {"forecast_tokens": min(forecast.mean), "used_tokens": tokens_min}
            self.notes.append(Reason(ReasonCode.FORECAST_TOO_SHORT, "", numbers, "prompts" if at == 1 else "outputs"))

    def interval_range(self, now: int, ahead_ms: int, interval_ms: int) -> tuple[int, int]:
        """Return the indices of the first and the last forecast interval within ``ahead_ms`` of ``now``."""
        return (now - self.begins_ms) // interval_ms, (now + ahead_ms - 1 - self.begins_ms) // interval_ms
