"""Demand as an agent has received it, as a reference for checks of its own counts and of its targets."""

from collections import deque
from collections.abc import Collection
from typing import Final

from msgspec import Struct, field

from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import TrafficReported

_KNOWN_MAX: Final = 64
"""Newest reports of a frontend by which a repeated one is recognised; they cover two minutes."""
_NEVER: Final = -(2**60)


class FrontendHistory(Struct):
    """Reports of one frontend."""

    reports: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_KNOWN_MAX))
    """Incarnation and sequence of its last reports."""
    newest: tuple[int, int] = (-1, -1)
    """Incarnation and sequence of its newest report."""
    seen_ms: int = _NEVER
    """Time of its newest report."""
    fresh_until_ms: int = _NEVER
    """Time until which it counts as reporting after that."""
    accepted: tuple[int, int] = (-1, -1)
    """Incarnation and sequence that the agent had accepted last, as of the last check."""
    accepted_until_ms: int = _NEVER
    """Time until which the agent must accept newer ones only, as of the last check."""


class TrafficHistory:
    """Traffic of one model at one agent. Times are those of the agent's own clock, in ms.

    Args:
        settings: Settings of the agent.
    """

    def __init__(self, settings: Settings) -> None:
        self.arrivals = 0
        """Arrivals of all reports; repeated ones count again from an overdue frontend, as after a restart."""
        self.busy_ms = _NEVER
        """Time of the newest report with a request."""
        self.frontends: dict[str, FrontendHistory] = {}
        self._stale_after_ms = settings.fleet.stale_after_ms
        self._window_ms = settings.fleet.traffic_window_ms

    def record(self, event: TrafficReported, now: int) -> None:
        """Record a report."""
        sample, number = event.sample, (event.incarnation, event.sample.sequence)
        frontend = self.frontends.get(event.frontend)
        if frontend is None:
            frontend = self.frontends[event.frontend] = FrontendHistory()
        overdue = now > frontend.fresh_until_ms
        if overdue and number <= frontend.newest:
            frontend.reports.clear()  # it may have restarted with the same numbers
        if number not in frontend.reports:
            self.arrivals += sample.arrivals
            frontend.reports.append(number)
        if number <= frontend.newest and not overdue:
            return
        if sample.arrivals or sample.queued or sample.in_flight:
            self.busy_ms = now
        frontend.newest, frontend.seen_ms = number, now
        frontend.fresh_until_ms = now + max(self._stale_after_ms, min(2 * sample.interval_ms, self._window_ms))

    def silent_ms(self, now: int) -> int:
        """Return the time by which the report of a frontend of the window is overdue; 0 if none is."""
        known = [one for one in self.frontends.values() if now - one.seen_ms <= self._window_ms]
        return max((now - one.fresh_until_ms for one in known), default=0)


class DemandHistory:
    """Traffic of all models at one agent, and targets that are below what is demanded.

    Args:
        settings: Settings of the agent.
    """

    def __init__(self, settings: Settings) -> None:
        self.traffic: dict[str, TrafficHistory] = {}
        """Traffic by model."""
        self.reporting: dict[tuple[str, str], None] = {}
        """Models and frontends that have reported in this turn."""
        self.below_since_ms: dict[str, int] = {}
        """Invariant -> time since which a target has been below the count that it demands."""
        self._settings = settings

    def record(self, event: TrafficReported, now: int) -> None:
        """Record a report."""
        traffic = self.traffic.get(event.model)
        if traffic is None:
            traffic = self.traffic[event.model] = TrafficHistory(self._settings)
        traffic.record(event, now)
        self.reporting[event.model, event.frontend] = None

    def retain_models(self, models: Collection[str]) -> None:
        """Forget all models but these."""
        self.traffic = {model: traffic for model, traffic in self.traffic.items() if model in models}
