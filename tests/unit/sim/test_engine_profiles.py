"""Engine profiles: measured points, interpolation, extrapolation, and errors of invalid files."""

import io
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadline.errors import DataError
from loadline.profile_files import read_decode
from loadline.sim.profiles import LinearProfile, MeasuredProfile

DATA = Path(__file__).parents[3] / "agent" / "loadline" / "demo" / "data"
TAG = "dynamo_h100_llama3.3-70b-fp8_tp2"
PREFILL, DECODE = DATA / f"{TAG}_prefill.json", DATA / f"{TAG}_decode.json"
PROFILE = MeasuredProfile(PREFILL, DECODE)
NAN = float("nan")


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


def test_measured_points_are_reproduced() -> None:
    assert PROFILE.prefill_ms(8_240) == pytest.approx(832.271, abs=0.01)
    # The grid rounds a point's KV usage to 1/200; between two points that is less than 1 ms of ITL here. Seven requests
    # of 16,671 tokens fill 0.521 of the cache.
    assert PROFILE.itl_ms(7, 0.52065961 * 224_133) == pytest.approx(35.537, abs=0.2)
    assert PROFILE.max_kv_tokens == 224_133


def test_interpolation_is_linear_and_clamped(tmp_path: Path) -> None:
    profile = MeasuredProfile(*write(tmp_path))
    # 25 ms at 200 tokens is an outlier: 300 tokens take 20 ms. The line of the first two points passes through zero.
    assert [profile.prefill_ms(isl) for isl in (0, 1, 100, 150, 200, 300, 400)] == [0, 0.1, 10, 15, 20, 20, 20]
    assert profile.itl_ms(4, 600) == pytest.approx(0.5 * 16 + 0.5 * 42)  # a context of 150, 0.6 of the cache
    assert profile.itl_ms(1_000, 1) == pytest.approx(10.01)
    assert profile.itl_ms(1, 5_000) == 50


def test_between_points_of_a_context_the_itl_is_interpolated_and_beyond_them_the_nearest() -> None:
    sweep = read_decode(DECODE)
    context = min(sweep.rows())  # its points end at 0.58 of the cache; batches of shorter contexts are read there
    usages, itl_ms = zip(
        *((sweep.kv_usage[place], sweep.itl_ms[place]) for place in sweep.rows()[context]), strict=True
    )
    grid = np.linspace(0.0, 1.0, 201)
    found = [PROFILE.itl_ms(100_000, usage * sweep.max_kv_tokens) for usage in grid]
    assert found == pytest.approx(np.interp(grid, usages, itl_ms))
    assert found[-1] == itl_ms[-1]


def test_the_fixed_time_of_a_pass_is_never_negative(tmp_path: Path) -> None:
    profile = MeasuredProfile(
        *write(tmp_path, prefill_isl=[100, 200], prefill_ttft=[10.0, 40.0], prefill_thpt_per_gpu=[1, 1])
    )
    assert [profile.prefill_ms(isl) for isl in (0, 50, 100, 200)] == [0, 5, 10, 40]
    assert PROFILE.prefill_ms(0) == pytest.approx(32.46 - 100 * (208.30 - 32.46) / 2_035, abs=0.01)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_longer_prompts_never_take_less_time(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 < PROFILE.prefill_ms(low) <= PROFILE.prefill_ms(high)


@given(st.integers(1, 10_000), st.floats(1, 1e7))
def test_iteration_times_stay_within_the_measured_range(batch_requests: int, kv_tokens: float) -> None:
    assert 17 < PROFILE.itl_ms(batch_requests, kv_tokens) < 68


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"prefill_ttft": None}, "p.npz: key 'prefill_ttft' is missing. A profile of this kind has prefill_isl,"),
        ({"z_itl": None}, "d.npz: key 'z_itl' is missing"),
        ({"prefill_ttft": [1.0, NAN, 1.0]}, "p.npz: point 2 of key 'prefill_ttft' is nan: not finite"),
        (
            {"z_itl": [1.0, NAN, 1.0, 1.0]},
            "d.npz: point 2 of key 'z_itl' is nan: not finite, or not within 0 and .*. Profile",
        ),
        ({"z_itl": [1.0, 1.0, -3.0, 1.0]}, "d.npz: point 3 of key 'z_itl' is -3.0"),
        ({"z_itl": [1.0, float("inf"), 1.0, 1.0]}, "d.npz: point 2 of key 'z_itl' is inf"),
        ({"z_itl": [1.0, 0.0, 1.0, 1.0]}, "d.npz: point 2 of key 'z_itl' is 0"),
        ({"prefill_ttft": [0.0, 1.0, 2.0]}, "p.npz: point 1 of key 'prefill_ttft' is 0"),
        ({"max_kv_tokens": [0]}, "d.npz: point 1 of key 'max_kv_tokens' is 0"),
        ({"max_kv_tokens": []}, "d.npz: key 'max_kv_tokens' is empty"),
        ({"z_itl": [1.0]}, "d.npz: .*'z_itl' has 1, .*: they need equally many points"),
        (
            {"prefill_isl": [100], "prefill_ttft": [10.0], "prefill_thpt_per_gpu": [1]},
            "p.npz: .* has 1: they need .* at least 2. Profile",
        ),
        (
            {"prefill_thpt_per_gpu": [1, 0, 1]},
            "p.npz: point 2 of key 'prefill_thpt_per_gpu' is 0: below the minimum of 1e-06. Profile",
        ),
        ({"z_thpt_per_gpu": None}, "d.npz: key 'z_thpt_per_gpu' is missing"),
        ({"max_kv_tokens": [1, 2]}, "d.npz: key 'max_kv_tokens' has 2 values. Write one number"),
        (
            {"x_kv_usage": [0.5], "y_context_length": [100], "z_itl": [10.0]},
            "d.npz: 'x_kv_usage' has 1, .*: they need equally many points, at least 2",
        ),
        ({"prefill_isl": [100, 100, 300]}, "p.npz: point 2 of key 'prefill_isl' is 100.0 after 100.0: it must rise"),
        ({"prefill_isl": [100, 300, 200]}, "p.npz: point 3 of key 'prefill_isl' is 200.0 after 300.0: .* Sort"),
        ({"x_kv_usage": [0.0, 1.0, 1.0, 0.0]}, "d.npz: point 4 of key 'x_kv_usage' is 0.0 after 1.0: it must rise"),
        ({"x_kv_usage": [0.0, 90.0, 0.0, 1.0]}, "d.npz: point 2 of key 'x_kv_usage' is 90.0: more than the whole"),
        ({"prefill_isl": [{}, {}, {}]}, "p.npz: cannot be read as NPZ"),
        ({"prefill_isl": ["a", "b", "c"]}, "p.npz: key 'prefill_isl' has type str32, not real numbers"),
        ({"z_itl": np.zeros(600_000)}, "d.npz: larger than 4000000 bytes"),
    ],
)
def test_invalid_files_are_named(tmp_path: Path, changed: dict[str, object], problem: str) -> None:
    paths = write(tmp_path, **changed)
    with pytest.raises(DataError, match=problem):
        MeasuredProfile(*paths)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"isl,ttft\n1,2\n"])
def test_files_that_are_not_npz_are_named(tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.npz"
    bad.write_bytes(content)
    for path in (bad, tmp_path / "missing.npz", tmp_path):
        with pytest.raises(DataError, match=path.name):
            MeasuredProfile(path, path)


def test_a_file_that_unpacks_to_too_much_is_refused_before(tmp_path: Path) -> None:
    prefill, decode = write(tmp_path)
    with ZipFile(prefill, "w", ZIP_DEFLATED) as archive:
        archive.writestr("prefill_isl.npy", bytes(50_000_000))
    assert prefill.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"p\.npz: larger than"):
        MeasuredProfile(prefill, decode)


def test_a_truncated_profile_is_named(tmp_path: Path) -> None:
    whole = PREFILL.read_bytes()
    path = tmp_path / "cut.npz"
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"cut\.npz"):
            MeasuredProfile(path, DECODE)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_damaged_bytes_cause_a_data_error_or_no_change(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(PREFILL.read_bytes())
    for place, byte in flips:
        content[place % len(content)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(content)
    try:
        damaged = MeasuredProfile(path, DECODE)
    except DataError:
        return
    prompts = (1.0, 700.0, 9_000.0)
    assert [damaged.prefill_ms(n) for n in prompts] == [MeasuredProfile(PREFILL, DECODE).prefill_ms(n) for n in prompts]


def test_a_header_of_an_absurd_shape_is_named(tmp_path: Path) -> None:
    prefill, decode = write(tmp_path)
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with ZipFile(prefill, "w") as archive:
        archive.writestr("prefill_isl.npy", raw.getvalue())
    with pytest.raises(DataError, match=r"p\.npz: cannot be read"):
        MeasuredProfile(prefill, decode)


def test_linear_times() -> None:
    profile = LinearProfile(alpha=7.0, beta=0.05, gamma=15.0, delta=0.02)
    assert profile.itl_ms(64, 1e5) == pytest.approx(10.2)
    assert profile.prefill_ms(1_000) == pytest.approx(35.0)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"beta": NAN}, "beta is nan"),
        ({"delta": float("inf")}, "delta is inf"),
        ({"alpha": 0.0, "beta": 0.0}, "work takes no time"),
        ({"gamma": 0.0, "delta": 0.0}, "work takes no time"),
    ],
)
def test_invalid_parameters_are_named(changed: dict[str, float], problem: str) -> None:
    numbers = {"alpha": 7.0, "beta": 0.05, "gamma": 15.0, "delta": 0.02} | changed
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert({"profile": numbers}, dict[str, LinearProfile])
