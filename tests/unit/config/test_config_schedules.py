"""Validation of schedules, and their timezones."""

import pytest

from loadline.config import describe, parse, read_zones
from loadline.core.fleet.schedule_windows import ZoneOffsets
from tests.support.config_texts import DECODE, config_error, config_warnings, model

PLACE = "models[0].pools[0].schedules[0]"


def scheduled(replicas_min: int = 4, **changed: str) -> str:
    keys = {"start": "0 8 * * mon-fri", "end": "0 18 * * mon-fri", "timezone": "Europe/Berlin"} | changed
    lines = [f'{key} = "{value}"' for key, value in keys.items()]
    table = "\n".join(["[[models.pools.schedules]]", *lines, f"replicas_min = {replicas_min}"])
    return model("", f"{DECODE}\n{table}")


@pytest.mark.parametrize(
    ("text", "place", "problem", "remedy"),
    [
        (scheduled(start="0 8 * *"), "start", "'0 8 * *' has 4 fields", "Write minute, hour"),
        (scheduled(end="0 25 * * *"), "end", "'0 25 * * *' has '25' as its hour", "0 to 23"),
        (scheduled(end="00 08 * * 1-5"), "end", "so the window is empty", "later"),
        (scheduled(9), "replicas_min", "9 is above replicas_max 8", "raise replicas_max"),
        (scheduled(0), "replicas_min", "0", "1"),
        (scheduled(timezone="Europe/Berlyn"), "timezone", "is not a timezone", "Did you mean Europe/Berlin?"),
        (scheduled(start="@daily"), "start", "'@daily' has 1 field instead of 5", "Write minute, hour"),
        (scheduled(timezone="CEST"), "timezone", "is not a timezone", "Write a timezone such as Europe/Berlin."),
        (scheduled(timezone="Nowhere"), "timezone", "is not a timezone", "Europe/Berlin"),
    ],
)
def test_an_invalid_schedule_is_refused(text: str, place: str, problem: str, remedy: str) -> None:
    found = config_error("", base=text)
    assert found.place == f"{PLACE}.{place}"
    assert problem in found.problem
    assert remedy in found.remedy


def test_a_missing_tz_database_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadline.config.schedules.available_timezones", set)
    found = config_error("", base=scheduled())
    assert "no tz database" in found.problem
    assert "tzdata" in found.remedy
    read_zones(parse(scheduled(timezone="UTC"), "x"))


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (scheduled(1), f"{PLACE}.replicas_min", "has no effect"),
        (scheduled().replace('"m"', '"m"\ngpu_budget_max = 3'), "models[0].gpu_budget_max", "the 4 that all pools"),
        (scheduled(start="0 0 * * mon-fri", end="0 0 * * tue-sat"), f"{PLACE}.end", "the same minute as some starts"),
        (scheduled(start="30 8 29 2 *", end="*/15 8 29 * *"), f"{PLACE}.end", "the same minute as some starts"),
    ],
)
def test_a_schedule_without_effect_is_warned_of(text: str, place: str, words: str) -> None:
    (warning,) = [
        warning for warning in config_warnings("", base=text) if not warning.startswith("models[0].pools: decode")
    ]
    assert warning.startswith(f"{place}: ")
    assert words in warning


def test_a_window_that_ends_before_it_starts_again_is_no_reason_to_warn() -> None:
    for start, end in (("0 0 * * mon", "0 0 * * sat"), ("0 8 * * *", "1 8 * * *"), ("0 0 29 2 *", "0 0 1 3 *")):
        found = config_warnings("", base=scheduled(start=start, end=end))
        assert not [warning for warning in found if warning.startswith(PLACE)]


def test_timezones_are_read_as_data() -> None:
    zones = read_zones(parse(scheduled() + scheduled(timezone="Asia/Kolkata") + scheduled(timezone="UTC"), "x"))
    assert sorted(zones) == ["Asia/Kolkata", "Europe/Berlin", "UTC"]
    assert (zones["UTC"], zones["Asia/Kolkata"]) == (ZoneOffsets(), ZoneOffsets((), (330,)))
    berlin = zones["Europe/Berlin"]
    assert set(berlin.offsets_min) == {60, 120}
    assert 1_711_846_800_000 in berlin.changed_at_ms, "2024-03-31 01:00 UTC, to the minute"
    assert len(berlin.changed_at_ms) == 2 * 40


def test_the_description_covers_schedules_and_scale_to_zero() -> None:
    document = (
        scheduled()
        .replace('"m"', '"m"\nscale_to_zero_after_ms = 600_000')
        .replace(DECODE, f"{DECODE}\nreplicas_min = 0")
    )
    described = describe(parse(document, "x"))
    assert "From '0 8 * * mon-fri' to '0 18 * * mon-fri', Europe/Berlin: at least 4 workers, started early" in described
    assert "Scales to zero after 10 min without requests" in described
