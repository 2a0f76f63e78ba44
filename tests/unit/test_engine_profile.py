"""Engine profiles: measured points are met, nothing outside them surprises, and a bad file says what is wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.errors import DataError
from loadline.sim.profile import EngineProfile

DATA = Path(__file__).parents[2] / "agent" / "loadline" / "demo" / "data"
TAG = "dynamo_h100_llama3.3-70b-fp8_tp2"
PROFILE = EngineProfile(DATA / f"{TAG}_prefill.npz", DATA / f"{TAG}_decode.npz")


def write(folder: Path, **changed: object) -> tuple[Path, Path]:
    prefill = {"prefill_isl": [100, 200, 300], "prefill_ttft": [10.0, 25.0, 20.0], "prefill_thpt_per_gpu": [1, 1, 1]}
    decode = {
        "x_kv_usage": [0.0, 1.0, 0.0, 1.0],
        "y_context_length": [100, 100, 200, 200],
        "z_itl": [10.0, 20.0, 30.0, 50.0],
        "z_thpt_per_gpu": [1, 1, 1, 1],
        "max_kv_tokens": [1_000],
    }
    for arrays, name in ((prefill, "p.npz"), (decode, "d.npz")):
        kept = {key: changed.get(key, value) for key, value in arrays.items()}
        present: dict[str, Any] = {key: np.asarray(value) for key, value in kept.items() if value is not None}
        np.savez(folder / name, **present)
    return folder / "p.npz", folder / "d.npz"


def test_measured_points_are_met() -> None:
    assert PROFILE.prefill_ms(8_240) == pytest.approx(832.271, abs=0.01)
    # The grid rounds a point's KV usage to 1/200; between two points that is less than 1 ms of ITL here.
    assert PROFILE.itl_ms(0.521 * 224_133, 16_671) == pytest.approx(35.537, abs=0.2)
    assert PROFILE.max_kv_tokens == 224_133


def test_interpolation_is_linear_and_clamped(tmp_path: Path) -> None:
    profile = EngineProfile(*write(tmp_path))
    # 25 ms at 200 tokens is an outlier: 300 tokens take 20 ms.
    assert [profile.prefill_ms(isl) for isl in (1, 100, 150, 200, 300, 400)] == [10, 10, 15, 20, 20, 20]
    assert profile.itl_ms(500, 150) == pytest.approx(27.5)
    assert profile.itl_ms(-5, 1) == 10
    assert profile.itl_ms(5_000, 5_000) == 50


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_more_prompt_never_takes_less(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 < PROFILE.prefill_ms(low) <= PROFILE.prefill_ms(high)


@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_iteration_time_stays_within_what_was_measured(kv_tokens: float, context_tokens: float) -> None:
    assert 17 < PROFILE.itl_ms(kv_tokens, context_tokens) < 68


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"prefill_ttft": None}, "p.npz: key 'prefill_ttft' is missing"),
        ({"z_itl": None}, "d.npz: key 'z_itl' is missing"),
        ({"z_itl": [1.0, float("nan"), 1.0, 1.0]}, "d.npz: key 'z_itl' is empty, not finite or negative"),
        ({"z_itl": [1.0, 0.0, 1.0, 1.0]}, "d.npz: key 'z_itl' or 'max_kv_tokens' holds a zero"),
        ({"z_itl": [1.0]}, "differ in length"),
        ({"prefill_isl": [100, 100, 300]}, "no ISL twice"),
        ({"prefill_isl": [{}, {}, {}]}, "p.npz: cannot be read as NPZ"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, changed: dict[str, object], says: str) -> None:
    paths = write(tmp_path, **changed)
    with pytest.raises(DataError, match=says):
        EngineProfile(*paths)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"isl,ttft\n1,2\n"])
def test_files_that_are_no_npz_are_named(tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.npz"
    bad.write_bytes(content)
    for path in (bad, tmp_path / "missing.npz"):
        with pytest.raises(DataError, match=path.name):
            EngineProfile(path, path)
