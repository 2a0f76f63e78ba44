"""Windows of a wall clock in which a pool has a floor."""

from bisect import bisect_right
from typing import Annotated, Final

from msgspec import Meta, Struct

from loadline.core.fleet.cron import DAY_MIN, DAYS_MAX, CronSchedule
from loadline.core.vocabulary.scalars import WORKERS_MAX, Name

MINUTE_MS: Final = 60_000
UTC: Final = "UTC"


class ScheduleKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """A window in which a pool has a floor, whatever its load."""

    start: Annotated[
        str,
        Meta(
            max_length=200,
            description='When the window begins, as five fields of cron: "0 8 * * mon-fri" is at 8 on workdays.',
        ),
    ]
    end: Annotated[str, Meta(max_length=200, description="When it ends, likewise.")]
    replicas_min: Annotated[int, Meta(ge=1, le=WORKERS_MAX, description="Never fewer workers in the window.")]
    timezone: Annotated[
        Name, Meta(description="Whose wall clock: a name of the tz database, such as Europe/Berlin.")
    ] = UTC
    ready_at_start: Annotated[
        bool, Meta(description="Begin as much earlier as the last workers took to come, so that they are there.")
    ] = True


class ZoneOffsets(Struct, frozen=True):
    """What a wall clock is ahead of UTC: as data, so that a replay needs no tz database."""

    changed_at_ms: tuple[int, ...] = ()
    """When it is set anew, in Unix ms."""
    offsets_min: tuple[int, ...] = (0,)
    """By how many minutes it is ahead: before the first of those times, then from each of them on."""

    def to_wall_ms(self, now: int) -> int:
        """What the wall clock shows at ``now`` (ms). It never goes back.

        Where it should, it stands until the hour that comes twice is over. So every time of day comes once, but for
        those that are left out in spring.
        """
        at = bisect_right(self.changed_at_ms, now)
        wall_ms = now + self.offsets_min[at] * MINUTE_MS
        return max(wall_ms, self._end(at - 1)) if at else wall_ms

    def to_unix_ms(self, wall_ms: int) -> int:
        """When the wall clock first shows so much, or more where that is left out."""
        at = bisect_right(range(len(self.changed_at_ms)), wall_ms, key=self._end)
        found = wall_ms - self.offsets_min[at] * MINUTE_MS
        if not at:
            return found
        return self.changed_at_ms[at - 1] if wall_ms == self._end(at - 1) else max(found, self.changed_at_ms[at - 1])

    def _end(self, at: int) -> int:
        """What it shows, in ms, when it is set anew for this time."""
        return self.changed_at_ms[at] + self.offsets_min[at] * MINUTE_MS


class WindowState(Struct, frozen=True):
    """Where a window stands on its wall clock; minutes."""

    is_open: bool
    opens_min: int | None
    """When it begins next; None within a year."""
    closes_min: int
    """When this one ends, or the next one where there is none now; a year away if later."""
    next_check_min: int
    """When there is next anything to say, or to look for it."""


class ScheduleWindow(Struct, frozen=True):
    """From each start until the next end."""

    start: CronSchedule
    end: CronSchedule

    def state_at(self, minute: int) -> WindowState:
        """Where the window stands at a minute of its wall clock."""
        never = minute + DAYS_MAX * DAY_MIN
        started, ended = self.start.previous(minute), self.end.previous(minute)
        within = started is not None and (ended is None or started > ended)
        starts, stops = self.start.next(minute), self.end.next(minute) or never
        ends = stops if within or starts is None else self.end.next(starts) or never
        return WindowState(within, starts, ends, min(starts or never, stops))
