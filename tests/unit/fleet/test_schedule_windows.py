"""Schedule windows: timezones, daylight saving time, and starts before the window by the startup time."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadline.config.schedules import expanded
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import ScheduleKnobs, ZoneOffsets
from loadline.core.planning.schedules import Schedules
from tests.support.fleet_harness import FleetHarness

WORKDAYS = ScheduleKnobs("0 8 * * mon-fri", "0 18 * * mon-fri", 4, "Europe/Berlin")
ZONES = {name: expanded(name) for name in ("Europe/Berlin", "America/New_York", "Asia/Kolkata")}
MINUTE_MS = 60_000


def ms(text: str) -> int:
    """Return the Unix time in ms of a time in UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def utc(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%m-%d %H:%M:%S")


class Clock:
    """A pool with schedules, evaluated at given times."""

    def __init__(self, *schedules: ScheduleKnobs, start_up_ms: int = 0) -> None:
        pool = PoolKnobs("a", "decode", replicas_max=10, schedules=schedules)
        self.world = FleetHarness([pool], 0)
        self.world.pool("a").start_ups_ms = [start_up_ms] if start_up_ms else []
        self.schedules = Schedules([pool], ZONES)

    def evaluate(self, text: str) -> tuple[int, str | None]:
        """Return the minimum at a time in UTC, and the time of the next evaluation."""
        wake_ms = self.schedules.refresh(self.world.model, ms(text))
        return self.world.pool("a").schedule_minimum.replicas, utc(wake_ms)

    def until(self) -> str | None:
        return utc(self.world.pool("a").schedule_minimum.ends_at_ms)


@pytest.mark.parametrize(
    ("text", "minimum", "wake"),
    [
        ("2024-01-17T06:59:59", 0, "01-17 07:00:00"),
        ("2024-01-17T07:00:00", 4, "01-17 17:00:00"),
        ("2024-01-17T16:59:59", 4, "01-17 17:00:00"),
        ("2024-01-17T17:00:00", 0, "01-18 07:00:00"),
        ("2024-01-20T12:00:00", 0, "01-22 07:00:00"),
        ("2024-07-17T05:59:59", 0, "07-17 06:00:00"),
        ("2024-07-17T06:00:00", 4, "07-17 16:00:00"),
        ("2024-07-17T16:00:00", 0, "07-18 06:00:00"),
    ],
)
def test_a_workday_window_follows_daylight_saving_time(text: str, minimum: int, wake: str) -> None:
    assert Clock(WORKDAYS).evaluate(text) == (minimum, wake)


def test_cached_window_states_equal_new_ones() -> None:
    one = Clock(WORKDAYS, start_up_ms=10 * MINUTE_MS)
    for hour in range(24 * 14):
        text = f"2024-03-{20 + hour // 24:02d}T{hour % 24:02d}:07:00" if hour < 24 * 12 else "2024-04-01T07:00:00"
        assert one.evaluate(text) == Clock(WORKDAYS, start_up_ms=10 * MINUTE_MS).evaluate(text)


def test_the_end_of_the_window_is_reported() -> None:
    clock = Clock(WORKDAYS)
    clock.evaluate("2024-01-17T12:00:00")
    assert clock.until() == "01-17 17:00:00"
    clock.evaluate("2024-01-17T18:00:00")
    assert clock.world.pool("a").schedule_minimum.replicas == 0


def test_the_highest_minimum_of_all_active_windows_applies() -> None:
    lunch = ScheduleKnobs("0 12 * * *", "0 13 * * *", 7)
    clock = Clock(WORKDAYS, lunch)
    assert clock.evaluate("2024-01-17T11:59:59") == (4, "01-17 12:00:00")
    assert clock.evaluate("2024-01-17T12:00:00") == (7, "01-17 13:00:00")
    assert clock.until() == "01-17 13:00:00"
    assert clock.evaluate("2024-01-17T13:00:00") == (4, "01-17 17:00:00")
    assert clock.world.pool("a").minimum == 4


def test_an_end_takes_precedence_over_a_start_in_the_same_minute() -> None:
    clock = Clock(ScheduleKnobs("0 8,9 * * *", "0 9 * * *", 4))
    assert clock.evaluate("2024-01-17T08:59:59") == (4, "01-17 09:00:00")
    assert clock.evaluate("2024-01-17T09:00:00")[0] == 0


# -- workers that are ready at the start -------------------------------------------------------------------------------


def test_a_window_starts_earlier_by_the_startup_time() -> None:
    clock = Clock(WORKDAYS, start_up_ms=5 * MINUTE_MS)
    assert clock.evaluate("2024-01-17T06:54:59") == (0, "01-17 06:55:00")
    assert clock.evaluate("2024-01-17T06:55:00") == (4, "01-17 07:00:00")
    assert clock.until() == "01-17 17:00:00", "the end of the next window"
    assert clock.evaluate("2024-01-17T16:58:00") == (4, "01-17 17:00:00")
    assert clock.evaluate("2024-01-17T17:00:00")[0] == 0


def test_without_ready_at_start_a_window_starts_on_time() -> None:
    clock = Clock(replace(WORKDAYS, ready_at_start=False), start_up_ms=5 * MINUTE_MS)
    assert clock.evaluate("2024-01-17T06:59:59") == (0, "01-17 07:00:00")


def test_a_new_startup_time_moves_the_start() -> None:
    clock = Clock(WORKDAYS)
    assert clock.evaluate("2024-01-17T06:00:00") == (0, "01-17 07:00:00")
    clock.world.pool("a").start_ups_ms = [10 * MINUTE_MS]
    assert clock.evaluate("2024-01-17T06:01:00") == (0, "01-17 06:50:00")


# -- clock changes -----------------------------------------------------------------------------------------------------


def test_a_skipped_start_moves_to_the_clock_change() -> None:
    clock = Clock(ScheduleKnobs("30 2 * * *", "0 4 * * *", 4, "Europe/Berlin"))
    assert clock.evaluate("2024-03-31T00:59:59") == (0, "03-31 01:00:00"), "2:00 to 3:00 is skipped"
    assert clock.evaluate("2024-03-31T01:00:00") == (4, "03-31 02:00:00")
    assert clock.evaluate("2024-03-31T02:00:00")[0] == 0
    assert clock.evaluate("2024-04-01T00:30:00") == (4, "04-01 02:00:00"), "from then on in summer time"


def test_a_repeated_hour_starts_and_ends_a_window_once() -> None:
    begins = Clock(ScheduleKnobs("30 2 * * *", "0 5 * * *", 4, "Europe/Berlin"))
    # 2:30 comes at 0:30 UTC and again at 1:30, the hour from 2 to 3 ends at 2:00 UTC.
    found = [
        begins.evaluate(f"2024-10-27T{time}")[0]
        for time in ("00:29:59", "00:30:00", "01:00:00", "01:29:59", "02:00:00")
    ]
    assert found == [0, 4, 4, 4, 4]
    assert begins.evaluate("2024-10-27T03:59:59") == (4, "10-27 04:00:00")
    ends = Clock(ScheduleKnobs("0 22 * * *", "30 2 * * *", 4, "Europe/Berlin"))
    found = [
        ends.evaluate(f"2024-10-27T{time}")[0] for time in ("00:29:59", "00:30:00", "01:00:00", "01:29:59", "02:00:00")
    ]
    assert found == [4, 0, 0, 0, 0]
    assert ends.evaluate("2024-10-27T12:00:00") == (0, "10-27 21:00:00"), "by winter time"


def test_a_start_uses_the_offset_of_its_day() -> None:
    clock = Clock(ScheduleKnobs("0 8 1 7 *", "0 9 1 7 *", 4, "America/New_York"))
    assert clock.evaluate("2024-03-01T00:00:00") == (0, "07-01 12:00:00"), "by summer time, though it is winter"
    assert clock.evaluate("2024-03-10T07:00:00") == (0, "07-01 12:00:00")
    assert clock.evaluate("2024-07-01T12:00:00") == (4, "07-01 13:00:00")


@pytest.mark.parametrize(
    ("day", "before", "begins", "ends"),
    [
        ("2024-03-31", "00:49:59", "00:50:00", "03-31 04:00:00"),
        ("2024-10-27", "01:49:59", "01:50:00", "10-27 05:00:00"),
    ],
)
def test_an_earlier_start_accounts_for_a_clock_change(day: str, before: str, begins: str, ends: str) -> None:
    clock = Clock(ScheduleKnobs("30 3 * * *", "0 6 * * *", 4, "Europe/Berlin"), start_up_ms=40 * MINUTE_MS)
    assert clock.evaluate(f"{day}T{before}") == (0, f"{day[5:]} {begins}")
    assert clock.evaluate(f"{day}T{begins}")[0] == 4
    assert clock.until() == ends


@given(st.integers(0, 4_000), st.sampled_from(((120, 60), (60, 120), (0, 0))))
def test_to_unix_ms_is_the_first_time_of_a_wall_clock_time(minute: int, ahead: tuple[int, int]) -> None:
    zone = ZoneOffsets((2_000 * MINUTE_MS,), ahead)
    at_ms = zone.to_unix_ms(minute * MINUTE_MS)
    assert zone.to_wall_ms(at_ms) >= minute * MINUTE_MS > zone.to_wall_ms(at_ms - MINUTE_MS)


def test_a_timezone_without_clock_changes() -> None:
    clock = Clock(ScheduleKnobs("0 9 * * *", "0 10 * * *", 4, "Asia/Kolkata"))
    assert clock.evaluate("2024-06-01T03:29:59") == (0, "06-01 03:30:00"), "5 h 30 min ahead"
    assert clock.evaluate("2024-06-01T03:30:00") == (4, "06-01 04:30:00")


def test_the_wall_clock_never_decreases() -> None:
    zone = ZoneOffsets((1_000 * MINUTE_MS,), (120, 60))
    walls = [zone.to_wall_ms(minute * MINUTE_MS) // MINUTE_MS for minute in (999, 1_000, 1_030, 1_060, 1_061)]
    assert walls == [1_119, 1_120, 1_120, 1_120, 1_121]


def test_a_rare_window_is_evaluated_once_a_year() -> None:
    clock = Clock(ScheduleKnobs("0 0 29 2 *", "0 0 1 3 *", 4))
    assert clock.evaluate("2024-02-29T12:00:00")[0] == 4
    assert clock.evaluate("2025-02-28T12:00:00") == (0, "03-01 00:00:00")


def test_a_start_more_than_a_year_away_is_unknown() -> None:
    clock = Clock(ScheduleKnobs("0 0 29 2 *", "0 12 29 2 *", 4), start_up_ms=60 * MINUTE_MS)
    assert clock.evaluate("2024-03-01T00:00:00")[0] == 0
    assert clock.evaluate("2025-03-01T23:30:00") == (0, "03-02 00:00:00"), "no start within the next year"
    assert clock.evaluate("2028-02-28T22:59:00") == (0, "02-28 23:00:00")
    assert clock.evaluate("2028-02-28T23:00:00")[0] == 4
