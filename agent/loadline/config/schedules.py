"""Validation of schedules: cron lines, and timezones from the tz database of this machine."""

from collections.abc import Iterator
from datetime import UTC as UTC_ZONE
from datetime import datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from loadline.config.knobs import Config
from loadline.core.fleet.cron import CronError, parse_cron
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import MINUTE_MS, UTC, ScheduleKnobs, ZoneOffsets
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError

_YEARS: Final = (2020, 2060)
"""Years for which clock changes are computed: from the oldest traces to beyond the uptime of any agent."""


def read_zones(config: Config) -> dict[str, ZoneOffsets]:
    """Return the timezones of all schedules as data, by name.

    Raises:
        ConfigError: The tz database of this machine does not have a timezone.
    """
    return {schedule.timezone: _zone(schedule.timezone, place) for place, schedule in _schedules(config.models)}


def schedule_errors(model: ModelKnobs, place: str) -> Iterator[ConfigError]:
    """Yield errors of invalid cron lines, timezones and counts in the schedules of a model."""
    for here, schedule, pool in _of_model(model, place):
        times = []
        for key in ("start", "end"):
            try:
                times.append(parse_cron(getattr(schedule, key)))
            except CronError as error:
                problem = f"{getattr(schedule, key)!r} {error.problem}"
                yield ConfigError(f"{here}.{key}", problem, error.remedy)
        if len(times) == 2 and times[0] == times[1]:  # noqa: PLR2004 - both are valid
            yield ConfigError(f"{here}.end", "equals the start, so the window is empty", "Set a later end.")
        if schedule.replicas_min > pool.replicas_max:
            problem = f"{schedule.replicas_min} is above replicas_max {pool.replicas_max}"
            yield ConfigError(f"{here}.replicas_min", problem, "Lower it or raise replicas_max.")
        try:
            _zone(schedule.timezone, here)
        except ConfigError as error:
            yield error


def schedule_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Yield warnings about schedules without effect, and about schedules that exceed the budget of the model."""
    for here, schedule, pool in _of_model(model, place):
        if schedule.replicas_min <= pool.replicas_min:
            yield (
                f"{here}.replicas_min: {schedule.replicas_min} has no effect, since the pool has replicas_min "
                f"{pool.replicas_min}. Raise it, or remove the schedule."
            )
        if parse_cron(schedule.start).meets(parse_cron(schedule.end)):
            yield (
                f"{here}.end: {schedule.end!r} comes in the same minute as some starts of {schedule.start!r}: the "
                "window ends there, and none begins until the next start. Set another end; for a window without a gap, "
                "its last one."
            )
    peak = sum(highest_minimum(pool) * pool.gpus_per_worker for pool in model.pools)
    if model.gpu_budget_max is not None and peak > model.gpu_budget_max:
        yield (
            f"{place}.gpu_budget_max: {model.gpu_budget_max} GPUs are fewer than the {peak} that all pools need when "
            "their schedules overlap; schedules never exceed a limit. Raise it, or lower a replicas_min."
        )


def highest_minimum(pool: PoolKnobs) -> int:
    """Return the highest minimum of a pool over all its schedules."""
    return max([pool.replicas_min, *(schedule.replicas_min for schedule in pool.schedules)])


def _of_model(model: ModelKnobs, place: str) -> Iterator[tuple[str, ScheduleKnobs, PoolKnobs]]:
    for index, pool in enumerate(model.pools):
        for number, schedule in enumerate(pool.schedules):
            yield f"{place}.pools[{index}].schedules[{number}]", schedule, pool


def _schedules(models: tuple[ModelKnobs, ...]) -> Iterator[tuple[str, ScheduleKnobs]]:
    for index, model in enumerate(models):
        yield from ((here, schedule) for here, schedule, _ in _of_model(model, f"models[{index}]"))


def _zone(name: str, place: str) -> ZoneOffsets:
    if name == UTC:
        return ZoneOffsets()
    known = available_timezones()
    if not known:
        remedy = "Install tzdata, or write times in UTC."
        raise ConfigError(f"{place}.timezone", f"{name!r} is unknown, since this machine has no tz database", remedy)
    if name not in known:
        # Suggest places only: abbreviations look alike and are hours apart, as CEST and EST.
        close = get_close_matches(name, sorted(zone for zone in known if "/" in zone), n=1)
        remedy = f"Did you mean {close[0]}?" if close else "Write a timezone such as Europe/Berlin."
        raise ConfigError(f"{place}.timezone", f"{name!r} is not a timezone", remedy)
    return expanded(name)


@cache
def expanded(name: str) -> ZoneOffsets:
    """Compute the clock changes of a timezone of the tz database, at most one per day."""
    zone, day = ZoneInfo(name), timedelta(days=1)
    at, end = (datetime(year, 1, 1, tzinfo=UTC_ZONE) for year in _YEARS)
    since_ms: list[int] = []
    ahead_min = [_ahead(at, zone)]
    while at < end:
        if _ahead(at + day, zone) != ahead_min[-1]:
            since_ms.append(_change(at, at + day, zone))
            ahead_min.append(_ahead(at + day, zone))
        at += day
    return ZoneOffsets(tuple(since_ms), tuple(ahead_min))


def _ahead(at: datetime, zone: tzinfo) -> int:
    ahead = at.astimezone(zone).utcoffset() or timedelta()
    return ahead // timedelta(minutes=1)


def _change(before: datetime, after: datetime, zone: tzinfo) -> int:
    """Find the clock change between two times, in Unix ms."""
    first, minutes = _ahead(before, zone), int((after - before).total_seconds()) // 60
    low, high = 0, minutes
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _ahead(before + timedelta(minutes=middle), zone) == first else (low, middle)
    return (int(before.timestamp()) // 60 + high) * MINUTE_MS
