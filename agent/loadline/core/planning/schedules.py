"""Scheduled minimum replicas: in the windows of a pool's schedules, and for its start-up time before them."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from loadline.core.fleet.cron import parse_cron
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import NO_SCHEDULE_MINIMUM, Pool, PoolKnobs, ScheduleMinimum
from loadline.core.fleet.schedule_windows import MINUTE_MS, UTC, ScheduleKnobs, ScheduleWindow, ZoneOffsets


class Seen(Struct, frozen=True):
    """State of a window, valid for a while; times in Unix ms."""

    from_ms: int
    until_ms: int
    within: bool
    starts_ms: int | None
    """None within a year."""
    ends_ms: int


class Schedule:
    """One window of one pool; its cache follows from the time alone."""

    def __init__(self, knobs: ScheduleKnobs, zones: Mapping[str, ZoneOffsets]) -> None:
        self._knobs = knobs
        self._zone = ZoneOffsets() if knobs.timezone == UTC else zones[knobs.timezone]
        self._window = ScheduleWindow(parse_cron(knobs.start), parse_cron(knobs.end))
        self._seen = Seen(0, 0, within=False, starts_ms=None, ends_ms=0)

    def floor(self, start_up_ms: int, now: int) -> tuple[ScheduleMinimum, int]:
        """Return the minimum at ``now`` (ms) for a pool with this start-up time, and when it changes."""
        if not self._seen.from_ms <= now < self._seen.until_ms:
            self._seen = self._look(now)
        seen = self._seen
        begins_ms = None if seen.starts_ms is None else seen.starts_ms - start_up_ms * self._knobs.ready_at_start
        if seen.within or (begins_ms is not None and now >= begins_ms):
            return ScheduleMinimum(self._knobs.replicas_min, seen.ends_ms), seen.until_ms
        return NO_SCHEDULE_MINIMUM, seen.until_ms if begins_ms is None else min(begins_ms, seen.until_ms)

    def _look(self, now: int) -> Seen:
        span = self._window.state_at(self._zone.to_wall_ms(now) // MINUTE_MS)
        starts_ms = None if span.opens_min is None else self._unix_ms(span.opens_min)
        return Seen(now, self._unix_ms(span.next_check_min), span.is_open, starts_ms, self._unix_ms(span.closes_min))

    def _unix_ms(self, minute: int) -> int:
        return self._zone.to_unix_ms(minute * MINUTE_MS)


class Schedules:
    """All scheduled windows of a model."""

    def __init__(self, pools: Iterable[PoolKnobs], zones: Mapping[str, ZoneOffsets]) -> None:
        self._by_pool = {
            pool.name: [Schedule(one, zones) for one in pool.schedules] for pool in pools if pool.schedules
        }

    def look(self, model: Model, now: int) -> int | None:
        """Set the scheduled minimums at ``now`` (ms); return when they change next, None: there are no schedules."""
        wakes = [_set(model.pools[name], schedules, now) for name, schedules in self._by_pool.items()]
        return min(wakes, default=None)


def _set(pool: Pool, schedules: Sequence[Schedule], now: int) -> int:
    found = [one.floor(pool.start_up_ms(0), now) for one in schedules]
    pool.schedule_minimum = max((floor for floor, _ in found), key=lambda floor: (floor.replicas, floor.ends_at_ms))
    return min(wake for _, wake in found)
