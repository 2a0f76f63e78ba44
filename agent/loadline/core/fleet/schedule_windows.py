"""Schedule windows on a wall clock, in which a pool has other minimum replicas."""

from bisect import bisect_right
from typing import Annotated, Final

from msgspec import Meta, Struct

from loadline.core.fleet.cron import DAY_MIN, DAYS_MAX, CronSchedule
from loadline.core.vocabulary.scalars import WORKERS_MAX, Name

MINUTE_MS: Final = 60_000
UTC: Final = "UTC"


class ScheduleKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """A time window with other minimum replicas of a pool."""

    start: Annotated[
        str,
        Meta(
            max_length=200,
            description='Start of the window as a cron expression: "0 8 * * mon-fri" is 8:00 on workdays.',
        ),
    ]
    end: Annotated[str, Meta(max_length=200, description="End of the window as a cron expression.")]
    replicas_min: Annotated[int, Meta(ge=1, le=WORKERS_MAX, description="Minimum replicas in the window.")]
    timezone: Annotated[
        Name, Meta(description="Timezone of the expressions: a name of the tz database, such as Europe/Berlin.")
    ] = UTC
    ready_at_start: Annotated[
        bool, Meta(description="Start earlier by the startup time of workers, so that they are ready at the start.")
    ] = True


class ScheduleMinimum(Struct, frozen=True):
    """Minimum replicas of the active schedules of a pool."""

    replicas: int = 0
    ends_at_ms: int = -1
    """End of the window, in Unix ms; -1: no window is active."""


NO_SCHEDULE_MINIMUM: Final = ScheduleMinimum()


class ZoneOffsets(Struct, frozen=True):
    """Offsets of a timezone from UTC, as data, so that a replay needs no tz database."""

    changed_at_ms: tuple[int, ...] = ()
    """Times at which the offset changes, in Unix ms."""
    offsets_min: tuple[int, ...] = (0,)
    """Offsets in minutes: before the first change, then from each change on."""

    def to_wall_ms(self, now: int) -> int:
        """Return the wall-clock time at ``now`` (ms), which never decreases.

        When the clock is set back, the result is constant until the repeated hour is over, so no time of day occurs
        twice.
        """
        at = bisect_right(self.changed_at_ms, now)
        wall_ms = now + self.offsets_min[at] * MINUTE_MS
        return max(wall_ms, self._end(at - 1)) if at else wall_ms

    def to_unix_ms(self, wall_ms: int) -> int:
        """Return the Unix time in ms at which the wall clock first shows ``wall_ms`` or, if skipped, a later time."""
        at = bisect_right(range(len(self.changed_at_ms)), wall_ms, key=self._end)
        found = wall_ms - self.offsets_min[at] * MINUTE_MS
        if not at:
            return found
        return self.changed_at_ms[at - 1] if wall_ms == self._end(at - 1) else max(found, self.changed_at_ms[at - 1])

    def _end(self, at: int) -> int:
        """Return the wall-clock time just before a change of the offset, in ms."""
        return self.changed_at_ms[at] + self.offsets_min[at] * MINUTE_MS


class WindowState(Struct, frozen=True):
    """State of a window at a wall-clock time; all times in minutes."""

    is_open: bool
    opens_min: int | None
    """Next start; None: not within a year."""
    closes_min: int
    """End of the current window, or of the next one if none is open; at most a year away."""
    next_check_min: int
    """Next time at which the state can change or must be evaluated again."""


class ScheduleWindow(Struct, frozen=True):
    """A window from each start until the next end."""

    start: CronSchedule
    end: CronSchedule

    def state_at(self, minute: int) -> WindowState:
        """Return the state of the window at a wall-clock minute."""
        never = minute + DAYS_MAX * DAY_MIN
        started, ended = self.start.previous(minute), self.end.previous(minute)
        within = started is not None and (ended is None or started > ended)
        starts, stops = self.start.next(minute), self.end.next(minute) or never
        ends = stops if within or starts is None else self.end.next(starts) or never
        return WindowState(within, starts, ends, min(starts or never, stops))
