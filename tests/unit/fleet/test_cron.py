"""Cron expressions, compared with a calendar."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.fleet.cron import CronError, CronSchedule, parse_cron

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def minute(text: str) -> int:
    return int((datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH).total_seconds()) // 60


def at(found: int | None) -> str | None:
    return None if found is None else (EPOCH + timedelta(minutes=found)).strftime("%a %Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("text", "last", "following"),
    [
        ("0 8 * * mon-fri", "Fri 2024-03-08 08:00", "Mon 2024-03-11 08:00"),
        ("30 12 * * *", "Fri 2024-03-08 12:30", "Sat 2024-03-09 12:30"),
        ("*/20 * * * *", "Sat 2024-03-09 12:20", "Sat 2024-03-09 12:40"),
        ("5-10,25 12 * * *", "Sat 2024-03-09 12:25", "Sun 2024-03-10 12:05"),
        ("0 0 29 2 *", "Thu 2024-02-29 00:00", None),
        ("0 0 1 jan *", "Mon 2024-01-01 00:00", "Wed 2025-01-01 00:00"),
        ("0 0 13 * fri", "Fri 2024-03-08 00:00", "Wed 2024-03-13 00:00"),
        ("0 0 * * 7", "Sun 2024-03-03 00:00", "Sun 2024-03-10 00:00"),
        ("0 0 * * Sat-Sun", "Sat 2024-03-09 00:00", "Sun 2024-03-10 00:00"),
        ("0 22/1 * * *", "Fri 2024-03-08 23:00", "Sat 2024-03-09 22:00"),
        ("0 0 31 2,4,5 *", "Wed 2023-05-31 00:00", "Fri 2024-05-31 00:00"),
    ],
)
def test_the_previous_and_the_next_match(text: str, last: str, following: str | None) -> None:
    noon = minute("2024-03-09 12:30")  # a Saturday
    found = parse_cron(text)
    if text.startswith("30 12"):
        assert at(found.previous(noon)) == "Sat 2024-03-09 12:30", (
            "a match at the current minute counts as the previous one"
        )
        noon -= 1
        assert at(found.next(noon)) == "Sat 2024-03-09 12:30"
        following = "Sat 2024-03-09 12:30"
    assert (at(found.previous(noon)), at(found.next(noon))) == (last, following)


def matches(found: CronSchedule, when: datetime) -> bool:
    day, weekday = when.day in found.days, when.isoweekday() % 7 in found.weekdays
    on = day or weekday if found.any_day else day and weekday
    return on and when.month in found.months and when.hour * 60 + when.minute in found.minutes_of_day


HOURS = st.sampled_from(["*", "0", "3,15", "8-18/5"])
DAYS = st.sampled_from(["*", "1", "29-31", "*/2"])
MONTHS = st.sampled_from(["*", "feb", "2-3", "1,12"])
WEEKDAYS = st.sampled_from(["*", "0", "mon-fri", "sat,sun"])


@given(HOURS, DAYS, MONTHS, WEEKDAYS, st.datetimes(datetime(2023, 12, 1), datetime(2100, 4, 1)))  # noqa: DTZ001
def test_matches_equal_those_of_a_calendar_walked_hour_by_hour(
    hours: str, days: str, months: str, weekdays: str, moment: datetime
) -> None:
    found = parse_cron(f"0 {hours} {days} {months} {weekdays}")
    hour = moment.replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
    here = int((hour - EPOCH).total_seconds()) // 60
    last, following = found.previous(here), found.next(here)
    before = (hour - timedelta(hours=back) for back in range(367 * 24))
    after = (hour + timedelta(hours=ahead) for ahead in range(1, 366 * 24))
    assert at(last) == next((when.strftime("%a %Y-%m-%d %H:%M") for when in before if matches(found, when)), None)
    expected = next((when.strftime("%a %Y-%m-%d %H:%M") for when in after if matches(found, when)), None)
    assert at(following) == expected or (expected is None and following is not None)


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("0 8 * *", "has 4 fields", "minute, hour, day of the month, month, day of the week"),
        ("@daily", "has 1 field instead", "minute"),
        ("60 8 * * *", "'60' as its minute", "0 to 59"),
        ("0 24 * * *", "'24' as its hour", "0 to 23"),
        ("0 8 0 * *", "'0' as its day of the month", "1 to 31"),
        ("0 8 * 13 *", "'13' as its month", "such as feb"),
        ("0 8 * * workdays", "'workdays' as its day of the week", "such as mon"),
        ("0 18-8 * * *", "descending range of the hour, '18-8'", "comma"),
        ("*/0 * * * *", "with an invalid step, '*/0'", "above 0"),
        ("*/ * * * *", "with an invalid step", "above 0"),
        ("0 8 * * mon-", "'' as its day of the week", "0 to 7"),
        ("-5 8 * * *", "'' as its minute", "0 to 59"),
        ("1,,2 8 * * *", "'' as its minute", "0 to 59"),
        ("0 8 30 2 *", "no such month has a day 30", "another day"),
        ("0 8 31 4,6 *", "no such month has a day 31", "another day"),
    ],
)
def test_an_invalid_expression_is_refused_with_a_remedy(text: str, problem: str, remedy: str) -> None:
    with pytest.raises(CronError) as refused:
        parse_cron(text)
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy
