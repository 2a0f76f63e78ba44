"""Forecasts of arrivals next to the arrivals that came."""

from collections.abc import Iterator

from msgspec import Struct, field

from loadline.core.vocabulary.status import ForecastStatus


class ExpectedArrivals(Struct, frozen=True):
    """Forecast rate of the arrivals from one time to another, in Unix ms."""

    from_ms: int
    until_ms: int
    requests_per_s: float


class ForecastRecord(Struct):
    """Forecasts that wait for their time, and the differences of the earlier ones from what came."""

    expected: list[ExpectedArrivals] = field(default_factory=list)
    """Forecasts whose time has not ended, one after the other."""
    newest: ExpectedArrivals | None = None
    lead_ms: int = 0
    """Time from the newest forecast to the middle of what it forecasts."""
    compared: ExpectedArrivals | None = None
    """Forecast that was compared last."""
    observed_requests_per_s: float = 0.0
    """Arrivals in the time of ``compared``."""
    observed_requests: float = 0.0
    """Arrivals in the times of all compared forecasts."""
    error_requests: float = 0.0
    """Sum of the absolute differences of forecast and observed requests."""

    def expect(self, forecast: ExpectedArrivals, lead_ms: int) -> None:
        """Record a forecast; it is compared unless an earlier one is for the same time."""
        self.newest, self.lead_ms = forecast, lead_ms
        if not self.expected or forecast.from_ms >= self.expected[-1].until_ms:
            self.expected.append(forecast)

    def ended(self, now: int) -> Iterator[ExpectedArrivals]:
        """Remove and yield the forecasts whose time has ended."""
        while self.expected and self.expected[0].until_ms <= now:
            yield self.expected.pop(0)

    def compare(self, forecast: ExpectedArrivals, requests_per_s: float) -> None:
        """Add the difference of a forecast from the observed rate."""
        seconds = (forecast.until_ms - forecast.from_ms) / 1_000.0
        self.compared, self.observed_requests_per_s = forecast, requests_per_s
        self.observed_requests += requests_per_s * seconds
        self.error_requests += abs(requests_per_s - forecast.requests_per_s) * seconds

    def restart(self) -> None:
        """Forget the forecasts whose time has not ended, as their intervals have changed."""
        self.expected.clear()

    def status(self) -> ForecastStatus | None:
        """Return the newest forecast and the one compared last; None before the first."""
        if self.newest is None:
            return None
        known = self.compared is not None
        return ForecastStatus(
            self.newest.requests_per_s,
            self.lead_ms,
            self.compared.requests_per_s if self.compared is not None else None,
            self.observed_requests_per_s if known else None,
            self.observed_requests,
            self.error_requests,
        )
