"""Cron expressions on a wall clock, in integer minutes since 1970.

Five fields ``minute hour day-of-month month day-of-week`` as in crontab(5): lists, ranges, steps and names; 7 is Sunday
too. If both day fields are restricted, a day that matches either one matches.
"""

from bisect import bisect_right
from typing import Final

from msgspec import Struct

DAY_MIN: Final = 1_440
DAYS_MAX: Final = 366
"""Days within which a match is searched."""
_LEAP_YEAR: Final = range(19_723, 19_723 + DAYS_MAX)
"""Days of 2024 since 1970."""
_FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of the week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Largest number of days of each month."""


class CronError(ValueError):
    """Text that is not a valid cron expression, with a remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy


class CronSchedule(Struct, frozen=True):
    """A parsed cron expression."""

    minutes_of_day: tuple[int, ...]
    """Matching minutes of a day, ascending."""
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    any_day: bool
    """True if both day fields are restricted, so that a match of either suffices."""

    def previous(self, minute: int) -> int | None:
        """Return the last match at or before a minute; None: not within a year."""
        today, at = divmod(minute, DAY_MIN)
        for day in range(today, today - DAYS_MAX - 1, -1):
            if self.is_on(day):
                found = bisect_right(self.minutes_of_day, at if day == today else DAY_MIN)
                if found:
                    return day * DAY_MIN + self.minutes_of_day[found - 1]
        return None

    def next(self, minute: int) -> int | None:
        """Return the first match after a minute; None: not within a year."""
        today, at = divmod(minute, DAY_MIN)
        for day in range(today, today + DAYS_MAX + 1):
            if self.is_on(day):
                found = bisect_right(self.minutes_of_day, at if day == today else -1)
                if found < len(self.minutes_of_day):
                    return day * DAY_MIN + self.minutes_of_day[found]
        return None

    def meets(self, other: "CronSchedule") -> bool:
        """Return True if a minute of a leap year, 2024, matches both."""
        minutes = set(self.minutes_of_day).intersection(other.minutes_of_day)
        return bool(minutes) and any(self.is_on(day) and other.is_on(day) for day in _LEAP_YEAR)

    def is_on(self, day: int) -> bool:
        """Return True if a day since 1970 matches."""
        month, of_month = _date(day)
        if month not in self.months:
            return False
        by_month, by_week = of_month in self.days, (day + 4) % 7 in self.weekdays  # 1970 began on a Thursday
        return by_month or by_week if self.any_day else by_month and by_week


def parse_cron(text: str) -> CronSchedule:
    """Parse a cron expression.

    Raises:
        CronError: The text is invalid, or never matches.
    """
    words = text.lower().split()
    if len(words) != len(_FIELDS):
        fields = ", ".join(label for label, *_ in _FIELDS)
        count = f"{len(words)} field{'' if len(words) == 1 else 's'}"
        raise CronError(f"has {count} instead of 5", f"Write {fields}, separated by spaces.")
    minutes, hours, days, months, weekdays = (_field(word, *field) for word, field in zip(words, _FIELDS, strict=True))
    by_month, by_week = not words[2].startswith("*"), not words[4].startswith("*")
    if by_month and not by_week and all(_DAYS[month - 1] < min(days) for month in months):
        raise CronError(f"never matches: no such month has a day {min(days)}", "Write another day or month.")
    return CronSchedule(
        tuple(hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        any_day=by_month and by_week,
    )


def _field(text: str, label: str, minimum: int, maximum: int, names: tuple[str, ...]) -> set[int]:
    """Return the values of a field."""
    values: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = minimum, maximum
        else:
            low = _value(first, label, minimum, maximum, names)
            high = _value(last, label, minimum, maximum, names) if dash else maximum if step else low
        if label == "day of the week" and high == 0 < low:
            high = 7  # a range may end on Sunday, which is 0 and 7
        if low > high:
            raise CronError(
                f"has a descending range of the {label}, {part!r}", "Write two ranges, separated by a comma."
            )
        if "/" in part and (not step.isdecimal() or not int(step)):
            raise CronError(f"has a {label} with an invalid step, {part!r}", "Write an integer above 0 after the /.")
        values.update(range(low, high + 1, int(step or 1)))
    return values


def _value(text: str, label: str, minimum: int, maximum: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + minimum
    if text.isdecimal() and minimum <= int(text) <= maximum:
        return int(text)
    named = f", or a name such as {names[1]}" if names else ""
    raise CronError(f"has {text!r} as its {label}", f"Write {minimum} to {maximum}{named}.")


def _date(day: int) -> tuple[int, int]:
    """Return month and day of the month of a day since 1970, in the Gregorian calendar.

    Source: ``civil_from_days`` of http://howardhinnant.github.io/date_algorithms.html. Its years begin in March, so
    that the leap day is the last.
    """
    of_era = (day + 719_468) % 146_097
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    return (month + 2) % 12 + 1, of_year - (153 * month + 2) // 5 + 1
