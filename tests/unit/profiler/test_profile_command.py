"""Command `loadline profile`: options, and the files and lines that it writes of measurements."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline import report
from loadline.cli.main import main
from loadline.cli.profile_results import format_profile, write_results
from loadline.demo import defaults
from loadline.errors import DataError
from loadline.profile_files import read_decode, read_prefill
from loadline.profiler.batch import BatchTiming
from loadline.profiler.choice import Workload
from loadline.profiler.plan import QUICK, DecodeTask, Limits, PrefillTask
from loadline.profiler.record import DecodePoint, LimitsFound, PrefillPoint, Record, Setup
from loadline.report.sweeps import decode_plot, prefill_plot

WORKLOAD = Workload(1_000, 100, ttft_ms=200, itl_ms=30)
PNG = b"\x89PNG"


def record(folder: Path, name: str, gpus: int, *, usage_factor: float = 1.0) -> Record:
    """Return measurements of an engine: 0.1 ms a prompt token, 10 ms and 0.5 ms a request; divided by its GPUs."""
    found = Record(folder / name, Setup("tiny", gpus, QUICK, 0.0))
    found.add(LimitsFound(Limits(4_096, 64_000, 16, 32)))
    for isl in (4_000, 100, 1_000):
        found.add(PrefillPoint(PrefillTask(isl), float(isl), (5.0 + isl * 0.1) / gpus))
    for context in (128, 4_000):
        for n in (1, 8, 4):
            timing = BatchTiming(float(n), (10.0 + 0.5 * n) / gpus, n * context / 64_000 * usage_factor)
            found.add(DecodePoint(DecodeTask(context, n), timing))
    return found


def test_results_are_profiles_plots_thresholds_and_linear_parameters(tmp_path: Path) -> None:
    records = {name: record(tmp_path, name, gpus) for name, gpus in (("tp1", 1), ("tp2", 2))}
    said = format_profile(write_results(tmp_path, records, WORKLOAD))
    assert read_prefill(tmp_path / "tp2").tokens_per_s_per_gpu == read_prefill(tmp_path / "tp1").tokens_per_s_per_gpu
    assert read_decode(tmp_path / "tp2").itl_ms[0] * 2 == pytest.approx(read_decode(tmp_path / "tp1").itl_ms[0])
    assert read_prefill(tmp_path) == read_prefill(tmp_path / "tp1")
    assert "alpha = 10, beta = 0.5, gamma = 5, delta = 0.1, max_kv_tokens = 64000, max_batch_requests = 8" in said
    assert "prefill_queue_scale_up_threshold = 1.286" in said  # 1.2 * 200 / 105 - 1
    assert {path.name for path in tmp_path.iterdir()} >= {"prefill_performance.png", "decode_performance.png"}
    assert (tmp_path / "decode_performance.png").read_bytes().startswith(PNG)


def test_without_matplotlib_the_rest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "available", lambda: False)
    result = write_results(tmp_path, {"tp1": record(tmp_path, "tp1", 1)}, WORKLOAD)
    assert "loadline-agent[plots]" in format_profile(result)
    assert not list(tmp_path.glob("*.png"))
    read_decode(tmp_path)


def test_an_engine_with_too_few_points_does_not_stop_the_others(tmp_path: Path) -> None:
    stopped = Record(tmp_path / "tp2", Setup("tiny", 2, QUICK, 0.0))
    records = {"tp1": record(tmp_path, "tp1", 1), "tp2": stopped}
    result = write_results(tmp_path, records, WORKLOAD)
    assert list(result.unusable) == ["tp2"]
    assert "tp2: no profile: prefill: key 'prefill_isl' is empty" in format_profile(result)
    read_prefill(tmp_path / "tp1")
    assert not write_results(tmp_path, {"tp2": stopped}, WORKLOAD).suggestions


def test_a_cache_that_is_larger_than_reported_is_pointed_out(tmp_path: Path) -> None:
    result = write_results(tmp_path, {"tp1": record(tmp_path, "tp1", 1, usage_factor=0.5)}, WORKLOAD)
    assert "50% of the KV usage" in format_profile(result)


def test_contexts_at_which_fewer_requests_ran_are_pointed_out(tmp_path: Path) -> None:
    tp1, limits = record(tmp_path, "tp1", 1), Limits(4_096, 64_000, 16, 32)
    tp1.add(LimitsFound(replace(limits, batches_found={128: 8})))
    assert "fewer requests" not in format_profile(write_results(tmp_path, {"tp1": tp1}, WORKLOAD))  # batch slots
    tp1.add(LimitsFound(replace(limits, batches_found={128: 8, 4_000: 2})))
    said = format_profile(write_results(tmp_path, {"tp1": tp1}, WORKLOAD))
    assert "at most 2 at 4000 tokens. Enable the engine's prefix cache" in said


def test_plots_accept_the_profiles_of_the_original() -> None:
    assert prefill_plot({"a": read_prefill(defaults.PREFILL_PROFILE)}, 500.0).startswith(PNG)
    assert decode_plot({"a": read_decode(defaults.DECODE_PROFILE)}, 50.0).startswith(PNG)


def test_another_setup_needs_another_folder(tmp_path: Path) -> None:
    record(tmp_path, "engine-1", 1)
    file = tmp_path / "engine-1" / "measurements.jsonl"
    with pytest.raises(DataError, match="another model, or with other options"):
        Record(tmp_path / "engine-1", Setup("tiny", 2, QUICK, 0.0))
    file.write_text("hello\n")
    with pytest.raises(DataError, match="no measurements"):
        Record(tmp_path / "engine-1", Setup("tiny", 1, QUICK, 0.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--url", "10.0.0.7:8000"], "is not a name and a URL"),
        (["--url", "a/b=http://10.0.0.7:8000"], "is not a name and a URL"),
        (["--url", "a=http://x", "--url", "a=http://y"], "one name"),
        (["--url", "http://x", "--gpus", "1", "--gpus", "2"], "2 counts for 1 engine"),
        (["--url", "http://x", "--gpus", "0"], "below 1"),
        (["--url", "http://x", "--isl", "nan"], "--isl"),
        (["--url", "http://x", "--prefix-reuse", "2"], "no ratio"),
        (["--url", "http://x", "--api-key-file", "/nothing"], "cannot be read"),
        (["--url", "http://x", "--api-key-file", __file__], "is no key"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://user:secret@x", "a/b=http://user:secret@x", "http://user:secret/y@x"])
def test_a_login_in_a_url_is_refused_and_not_printed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--url", url]) == 2
    said = capsys.readouterr().err
    assert "contains a login" in said
    assert "secret" not in said


def test_an_empty_key_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    file.write_text("\n")
    assert main(["profile", "--url", "http://x", "--api-key-file", str(file)]) == 2
    assert f"{file}: is empty" in capsys.readouterr().err
