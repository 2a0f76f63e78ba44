"""Scheduled minimum replicas: during the windows of a pool's schedules, and for its start-up time before them."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from loadline.core.fleet.cron import parse_cron
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.schedule_windows import (
    MINUTE_MS,
    NO_SCHEDULE_MINIMUM,
    UTC,
    ScheduleKnobs,
    ScheduleMinimum,
    ScheduleWindow,
    ZoneOffsets,
)


class CachedWindow(Struct, frozen=True):
    """State of a scheduled window from ``from_ms`` until ``until_ms``; times in Unix ms."""

    from_ms: int
    until_ms: int
    within: bool
    starts_ms: int | None
    """Next start; None: not within a year."""
    ends_ms: int


class Schedule:
    """One scheduled window of one pool; caches its state, which depends on the time only."""

    def __init__(self, knobs: ScheduleKnobs, zones: Mapping[str, ZoneOffsets]) -> None:
        self._knobs = knobs
        self._zone = ZoneOffsets() if knobs.timezone == UTC else zones[knobs.timezone]
        self._window = ScheduleWindow(parse_cron(knobs.start), parse_cron(knobs.end))
        self._state = CachedWindow(0, 0, within=False, starts_ms=None, ends_ms=0)

    def minimum(self, start_up_ms: int, now: int) -> tuple[ScheduleMinimum, int]:
        """Return the minimum at ``now`` (ms) for a pool with this start-up time, and the time of its next change."""
        if not self._state.from_ms <= now < self._state.until_ms:
            self._state = self._state_at(now)
        state = self._state
        begins_ms = None if state.starts_ms is None else state.starts_ms - start_up_ms * self._knobs.ready_at_start
        if state.within or (begins_ms is not None and now >= begins_ms):
            return ScheduleMinimum(self._knobs.replicas_min, state.ends_ms), state.until_ms
        return NO_SCHEDULE_MINIMUM, state.until_ms if begins_ms is None else min(begins_ms, state.until_ms)

    def _state_at(self, now: int) -> CachedWindow:
        span = self._window.state_at(self._zone.to_wall_ms(now) // MINUTE_MS)
        starts_ms = None if span.opens_min is None else self._unix_ms(span.opens_min)
        ends_ms, until_ms = self._unix_ms(span.closes_min), self._unix_ms(span.next_check_min)
        return CachedWindow(now, until_ms, span.is_open, starts_ms, ends_ms)

    def _unix_ms(self, minute: int) -> int:
        return self._zone.to_unix_ms(minute * MINUTE_MS)


class Schedules:
    """All scheduled windows of a model."""

    def __init__(self, pools: Iterable[PoolKnobs], zones: Mapping[str, ZoneOffsets]) -> None:
        self._by_pool = {
            pool.name: [Schedule(one, zones) for one in pool.schedules] for pool in pools if pool.schedules
        }

    def refresh(self, model: Model, now: int) -> int | None:
        """Set the scheduled minimums of pools at ``now`` (ms).

        Returns:
            The time of their next change, in ms; None without schedules.
        """
        wakes = [_set(model.pools[name], schedules, now) for name, schedules in self._by_pool.items()]
        return min(wakes, default=None)


def _set(pool: Pool, schedules: Sequence[Schedule], now: int) -> int:
    found = [one.minimum(pool.start_up_ms(0), now) for one in schedules]
    minimums = (minimum for minimum, _ in found)
    pool.schedule_minimum = max(minimums, key=lambda minimum: (minimum.replicas, minimum.ends_at_ms))
    return min(wake_ms for _, wake_ms in found)
