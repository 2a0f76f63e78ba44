"""Fits of the linear latency model, and the command `loadline fit`."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.cli.main import main
from loadline.core.engines.fitting import Fit, FitRefused, fit_decode, fit_line
from loadline.core.engines.profile import LinearKnobs
from loadline.core.engines.regression import Line
from loadline.core.engines.sweeps import DecodeSweep
from loadline.errors import DataError
from loadline.profile_files import read_sweeps
from loadline.toml.checking import load_as

DATA = Path(__file__).parents[2] / "vectors" / "data"
ENGINE = "dynamo_h200_llama3.1-8b-fp8_tp1"
PREFILL = {"prefill_isl": [100, 200, 400], "prefill_ttft": [12.0, 14.0, 18.0], "prefill_thpt_per_gpu": [9.0, 8.0, 8.0]}
DECODE = {
    "x_kv_usage": [0.1, 0.5, 0.2, 0.8],
    "y_context_length": [1_000, 1_000, 2_000, 2_000],
    "z_itl": [11.0, 15.0, 11.0, 14.0],
    "z_thpt_per_gpu": [100, 200, 100, 200],
    "max_kv_tokens": 100_000,
}


class Pasted(msgspec.Struct):
    linear: LinearKnobs


def written(folder: Path, name: str, content: dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def fitted(found: Fit | FitRefused) -> Fit:
    assert isinstance(found, Fit)
    return found


@given(
    st.floats(0.0, 100.0),
    st.floats(0.0, 10.0),
    st.lists(st.floats(1.0, 10_000.0), min_size=2, max_size=20),
)
def test_a_fit_recovers_the_line_of_its_samples(intercept_ms: float, slope: float, loads: list[float]) -> None:
    found = fit_line(loads, [intercept_ms + slope * load + 0.001 for load in loads])
    if max(loads) - min(loads) < 0.2 * max(loads):
        assert isinstance(found, FitRefused)
        return
    line = fitted(found).line
    assert [line.at(load) for load in loads] == pytest.approx(
        [intercept_ms + slope * load + 0.001 for load in loads], rel=1e-6
    )
    assert (line.slope >= 0.0, line.intercept_ms >= 0.0) == (True, True)


def test_short_times_count_as_much_as_long_ones() -> None:
    """A plain least-squares line is 5 ms off at the first sample."""
    found = fitted(fit_line([1.0, 10.0, 100.0, 1_000.0, 2_000.0], [10.0, 11.0, 20.0, 110.0, 150.0]))
    assert found.line.at(1.0) == pytest.approx(10.0, rel=0.1)
    assert 0.0 < found.mean_error < found.largest_error < 0.3


def test_slopes_and_intercepts_are_not_negative() -> None:
    flat = fitted(fit_line([1.0, 2.0, 3.0], [10.2, 10.0, 9.8])).line
    assert flat == Line(0.0, flat.intercept_ms)
    assert flat.intercept_ms == pytest.approx(10.0, rel=1e-2)
    through = fitted(fit_line([1.0, 2.0, 3.0], [0.8, 2.0, 3.3])).line
    assert through == Line(through.slope, 0.0)
    assert through.slope == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("loads", "latencies_ms", "message"),
    [
        ([], [], "0 samples of nearly the same load"),
        ([8.0] * 20, [10.0] * 20, "20 samples of nearly the same load"),
        ([95.0, 100.0], [10.0, 11.0], "2 samples of nearly the same load"),
        ([1.0, 2.0, 3.0], [12.0, 10.0, 8.0], "latencies fall by 40% over the loads"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], [900.0, 1.0, 900.0, 1.0, 900.0], "by 60% on average"),
    ],
)
def test_samples_that_are_not_a_line_are_refused(loads: list[float], latencies_ms: list[float], message: str) -> None:
    found = fit_line(loads, latencies_ms)
    assert isinstance(found, FitRefused)
    assert message in found.problem


def test_a_sweep_is_fitted_for_all_contexts_or_for_one(tmp_path: Path) -> None:
    [sweep] = read_sweeps(written(tmp_path, "d.json", DECODE))
    assert isinstance(sweep, DecodeSweep)
    every, one = fitted(fit_decode([sweep])), fitted(fit_decode([sweep], 1_000.0))
    assert (every.line.slope, every.line.intercept_ms) == pytest.approx((0.1, 10.0))
    assert (one.line.slope, one.line.intercept_ms) == pytest.approx((0.1, 10.0))
    between = fitted(fit_decode([sweep], 1_500.0))
    assert (every.samples, one.samples, between.samples) == (4, 2, 2), "no batch that was not measured at both contexts"


def test_all_sweeps_of_a_folder_are_read(tmp_path: Path) -> None:
    both = written(tmp_path, "both.json", {**PREFILL, **DECODE})
    assert len(read_sweeps(both)) == 2
    folder = tmp_path / "results"
    folder.mkdir()
    with pytest.raises(DataError, match="contains none of selected_prefill_interpolation"):
        read_sweeps(folder)
    written(folder, "decode_raw_data.json", DECODE)
    assert [type(sweep) for sweep in read_sweeps(folder)] == [DecodeSweep]
    with pytest.raises(DataError, match=r"none\.json: contains no sweep"):
        read_sweeps(written(tmp_path, "none.json", {"note": "x"}))
    with pytest.raises(DataError, match="key 'prefill_ttft' is missing"):
        read_sweeps(written(tmp_path, "half.json", {"prefill_isl": [1, 2]}))


def test_the_printed_line_is_a_valid_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(written(tmp_path, "p.json", PREFILL)), str(written(tmp_path, "d.json", DECODE))]
    assert main(["fit", "--profile", *files]) == 0
    out = capsys.readouterr().out
    assert "10 + 0.1 * batch" in out
    config = tmp_path / "linear.toml"
    config.write_text(out.splitlines()[-1])
    linear = load_as(Pasted, config, lambda pasted: pasted).linear
    found = msgspec.structs.astuple(linear.times())
    assert found == pytest.approx((10.0, 0.1, 10.0, 0.02), rel=1e-4)
    assert (linear.max_kv_tokens, linear.max_batch_requests) == (100_000.0, 50.0)


def test_a_measured_engine(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(DATA / f"{ENGINE}_{role}.npz") for role in ("prefill", "decode")]
    assert main(["fit", "--profile", *files]) == 0
    assert "use decode_profile instead" in (all_contexts := capsys.readouterr().out)
    assert "fit one with --context" in all_contexts
    assert main(["fit", "--profile", *files, "--context", "2000"]) == 0
    assert "--context" not in capsys.readouterr().out


def test_two_samples_have_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(written(tmp_path, "p.json", PREFILL)), str(written(tmp_path, "d.json", DECODE))]
    assert main(["fit", "--profile", *files, "--context", "1500"]) == 0
    out = capsys.readouterr().out
    [iteration] = [line for line in out.splitlines() if line.startswith("iteration")]
    assert iteration.split()[-3:] == ["2", "unknown", "unknown"]
    assert "The decode line goes through both of its samples, so its error is unknown." in out
    assert "The prefill line goes" not in out


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({}, [], "there is no prefill sweep"),
        (PREFILL | {"prefill_isl": [390, 395, 400]}, [], "prefill: 3 samples of nearly the same load"),
        (PREFILL, ["--context", "500"], "--context: 500 was not measured. Write 1000 to 2000 tokens."),
        (PREFILL | {"prefill_ttft": [1e9, 2e9, 4e9]}, [], "which no engine has. Profile the engine again."),
    ],
)
def test_an_impossible_fit_is_reported(
    changed: dict[str, Any], options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "sweeps.json", {**changed, **DECODE})
    assert main(["fit", "--profile", str(path), *options]) == 2
    assert message in capsys.readouterr().err
