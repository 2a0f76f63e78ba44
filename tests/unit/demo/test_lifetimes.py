"""GPU hours from the scaler's lifetimes."""

from pathlib import Path

import pytest

from loadline.demo.lifetimes import gpu_hours
from loadline.errors import DataError
from loadline.scalers.local.lifetimes import Lifetime, Lifetimes


def test_gpu_hours_are_in_virtual_time_and_count_every_gpu(tmp_path: Path) -> None:
    path = tmp_path / "lifetimes.jsonl"
    assert gpu_hours(path, 20.0) == 0.0
    written = Lifetimes(path)
    written.add(Lifetime("w1", "m", "decode", 2, 1_000, 181_000, "drained"))
    written.add(Lifetime("w2", "m", "decode", 1, 5_000, 5_000, "stopped"))
    assert gpu_hours(path, 20.0) == pytest.approx(2 * 180 / 3_600 * 20)


def test_an_invalid_line_is_reported_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "lifetimes.jsonl"
    path.write_text("{}\n", "utf-8")
    with pytest.raises(DataError, match="line 1"):
        gpu_hours(path, 1.0)
