import time

import pytest

from loadline.adapters.system_clock import SystemClock


def test_the_clock_starts_with_the_wall_clock() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().now_ms()
    assert before - 1 <= now <= time.time_ns() // 1_000_000 + 1


def test_a_jump_of_the_wall_clock_does_not_change_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock.now_ms() < before + 3_600_000
