"""Windows of a wall clock in which a pool has a floor."""

from bisect import bisect_right
from typing import Annotated, Final

from msgspec import Meta, Struct

from loadline.core.models.cron import DAY_MIN, DAYS_MAX, Cron
from loadline.core.scalars import WORKERS_MAX, Name

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


class Zone(Struct, frozen=True):
    """What a wall clock is ahead of UTC: as data, so that a replay needs no tz database."""

    since_ms: tuple[int, ...] = ()
    """When it is set anew, in Unix ms."""
    ahead_min: tuple[int, ...] = (0,)
    """By how many minutes it is ahead: before the first of those times, then from each of them on."""

    def clock(self, now: int) -> "Clock":
        """The wall clock at ``now`` (ms)."""
        at = bisect_right(self.since_ms, now)
        ahead_ms = self.ahead_min[at] * MINUTE_MS
        before_ms = self.since_ms[at - 1] + self.ahead_min[at - 1] * MINUTE_MS if at else 0
        set_ms = self.since_ms[at] if at < len(self.since_ms) else None
        return Clock(max(now + ahead_ms, before_ms), ahead_ms, set_ms)


class Clock(Struct, frozen=True):
    """A wall clock that never goes back.

    Where it should, it stands until the hour that comes twice is over. So every time of day comes once, but for those
    that are left out in spring.
    """

    wall_ms: int
    ahead_ms: int
    """Of UTC, once it goes on."""
    set_ms: int | None
    """When it is next set anew, in Unix ms."""


class Span(Struct, frozen=True):
    """Where a window stands on its wall clock; minutes."""

    within: bool
    starts: int
    """When it begins next; a year away if never."""
    ends: int
    """When this one ends, or the next one where there is none now."""
    changes: int
    """When there is next anything to say."""


class Window(Struct, frozen=True):
    """From each start until the next end."""

    start: Cron
    end: Cron

    def at(self, minute: int) -> Span:
        """Where the window stands at a minute of its wall clock."""
        never = minute + DAYS_MAX * DAY_MIN
        started, ended = self.start.last(minute), self.end.last(minute)
        within = started is not None and (ended is None or started > ended)
        starts, stops = self.start.next(minute) or never, self.end.next(minute) or never
        ends = stops if within else self.end.next(starts) or never
        return Span(within, starts, ends, min(starts, stops))
