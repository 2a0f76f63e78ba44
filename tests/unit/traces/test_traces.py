"""Traces in all formats, as published, and the selection of a part."""

import gzip
from pathlib import Path

import pytest

from loadline.errors import ConfigError, DataError
from loadline.traces import REQUESTS_MAX, Arrival, RateKnobs, read_trace, selection

DATA = Path(__file__).parents[2] / "data"
HEADER = "arrival_s,isl,osl\n"


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def every_ten_seconds(folder: Path, count: int = 100) -> Path:
    """Build a trace whose prompt lengths identify the requests."""
    return write(folder, HEADER + "".join(f"{i * 10},{i + 1},5\n" for i in range(count)))


def test_azure_times_are_relative_to_the_first_request() -> None:
    trace = read_trace(DATA / "azure2023_conv_head.csv")
    assert trace.arrivals[:3] == [Arrival(0.0, 374, 44), Arrival(4.314579, 396, 109), Arrival(4.541877, 879, 55)]
    assert trace.duration_s == trace.arrivals[-1].arrival_s == 5.892655


def test_azure_times_may_have_an_offset_from_utc(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:01+02:00,10,6\n"
    assert read_trace(write(tmp_path, header + rows)).arrivals == [Arrival(0.0, 2162, 5), Arrival(0.99007, 10, 6)]


def test_mooncake_names_the_blocks_of_a_prompt() -> None:
    trace = read_trace(DATA / "mooncake_synthetic_cut.jsonl")
    assert trace.arrivals[0] == Arrival(12.772, 913, 3, (1205, 1206))
    assert trace.arrivals[2].prefix == (708, 709, 710, 711, 712, 1469)
    assert trace.duration_s == 19.152


def test_mooncake_lines_may_have_fewer_or_more_keys(tmp_path: Path) -> None:
    text = '{"timestamp": 5.5, "input_length": 7, "output_length": 1, "chat_id": [{}]}\n\n'
    assert read_trace(write(tmp_path, text, "t.jsonl")).arrivals == [Arrival(0.0055, 7, 1)]


def test_dithered_arrivals_replace_a_coarse_clock() -> None:
    arrivals = read_trace(DATA / "mooncake_conversation_head.csv").arrivals
    assert len(arrivals) == 12
    assert [one.arrival_s for one in arrivals[:3]] == [0.717, 0.86, 0.907]
    assert arrivals[0] == Arrival(0.717, 7236, 794, (), 512)
    assert arrivals == sorted(arrivals, key=lambda one: one.arrival_s)


def test_hit_blocks_are_cut_to_the_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_s,isl,osl,hit_blocks\n0,1000,1,2\n1,1000,1,1\n2,1000,1,0\n")
    assert [one.hit_tokens for one in read_trace(path).arrivals] == [1000, 512, 0]


@pytest.mark.parametrize(
    "text",
    [
        "client,osl,arrival_s,isl\na,3,0.5,7\nb,4,1.5,8\n",
        "\ufeffarrival_s, isl, osl\r\n0.5,7,3\r\n\r\n1.5,8,4\r\n",
        '"arrival_s","isl","osl"\n"0.5","7","3"\n1.5,8,4',
    ],
)
def test_columns_are_found_by_name(tmp_path: Path, text: str) -> None:
    assert read_trace(write(tmp_path, text)).arrivals == [Arrival(0.5, 7, 3), Arrival(1.5, 8, 4)]


def test_the_format_is_detected_by_content_not_by_name(tmp_path: Path) -> None:
    packed = tmp_path / "m.x0.25.csv"
    packed.write_bytes(gzip.compress(DATA.joinpath("mooncake_synthetic_cut.jsonl").read_bytes()))
    trace = read_trace(packed)
    assert trace.name == "m.x0.25"
    assert trace.arrivals == read_trace(DATA / "mooncake_synthetic_cut.jsonl").arrivals


def test_times_are_relative_to_the_start_of_the_window(tmp_path: Path) -> None:
    path = every_ten_seconds(tmp_path)
    trace = read_trace(path, arrivals=RateKnobs(start_s=95.0, duration_s=25.0))
    assert [(one.arrival_s, one.isl_tokens) for one in trace.arrivals] == [(5.0, 11), (15.0, 12)]
    assert trace.duration_s == 25.0
    # The trace has nothing after its end.
    assert read_trace(path, arrivals=RateKnobs(start_s=900.0, duration_s=1_000.0)).duration_s == 90.0
    # A window excludes its end, at which the next window begins.
    assert len(read_trace(path, arrivals=RateKnobs(duration_s=100.0)).arrivals) == 10


def test_nothing_is_read_after_the_window(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "0,1,1\n10,1,1\n20,1,1\nnonsense\n")
    assert len(read_trace(path, arrivals=RateKnobs(duration_s=15.0)).arrivals) == 2
    with pytest.raises(DataError, match="line 5"):
        read_trace(path)


def test_copies_are_seeded_and_jittered(tmp_path: Path) -> None:
    path = every_ten_seconds(tmp_path)
    three = read_trace(path, seed=5, arrivals=RateKnobs(scale=3.0))
    assert three == read_trace(path, seed=5, arrivals=RateKnobs(scale=3.0))
    assert three != read_trace(path, seed=6, arrivals=RateKnobs(scale=3.0))
    assert len(three.arrivals) == 300
    assert three.arrivals == sorted(three.arrivals, key=lambda one: one.arrival_s)
    moved_s = [one.arrival_s - (one.isl_tokens - 1) * 10 for one in three.arrivals]
    assert sum(by_s == 0 for by_s in moved_s) == 100
    assert 4 < max(map(abs, moved_s)) <= selection.JITTER_S
    assert three.arrivals[0].arrival_s >= 0
    assert three.arrivals[-1].arrival_s <= three.duration_s == 990.0


def test_a_copy_has_its_own_block_ids(tmp_path: Path) -> None:
    line = '{"timestamp": %d, "input_length": 513, "output_length": 1, "hash_ids": [0, %d]}\n'
    path = write(tmp_path, line % (0, 1) + line % (60_000, 7), "t.jsonl")
    blocks = [one.prefix for one in read_trace(path, arrivals=RateKnobs(scale=2.0)).arrivals]
    assert sorted(blocks) == [(0, 1), (0, 7), (8, 9), (8, 15)]


@pytest.mark.parametrize(("scale", "count"), [(0.5, 500), (0.1, 100), (1.5, 1_500), (2.25, 2_250)])
def test_thinning_depends_on_the_seed(tmp_path: Path, scale: float, count: int) -> None:
    path = every_ten_seconds(tmp_path, 1_000)
    trace = read_trace(path, seed=3, arrivals=RateKnobs(scale=scale))
    assert len(trace.arrivals) == pytest.approx(count, abs=65)  # four deviations of 1000 draws at most
    assert trace == read_trace(path, seed=3, arrivals=RateKnobs(scale=scale))
    assert trace != read_trace(path, seed=4, arrivals=RateKnobs(scale=scale))
    assert trace.duration_s == 9_990.0


@pytest.mark.parametrize(
    ("knobs", "place"),
    [
        (RateKnobs(scale=0.0), "scale"),
        (RateKnobs(scale=float("nan")), "scale"),
        (RateKnobs(scale=1_001.0), "scale"),
        (RateKnobs(start_s=-1.0), "start_s"),
        (RateKnobs(duration_s=0.0), "duration_s"),
        (RateKnobs(cv=0.0), "cv"),
        (RateKnobs(isl_tokens=0), "isl_tokens"),
        (RateKnobs(process="weibull"), "process"),  # type: ignore[arg-type]
    ],
)
def test_knobs_out_of_bounds_are_named(knobs: RateKnobs, place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_trace(DATA / "azure2023_conv_head.csv", arrivals=knobs)
    assert refused.value.place == place


def test_too_many_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert REQUESTS_MAX == 5_000_000
    monkeypatch.setattr(selection, "REQUESTS_MAX", 50)
    path = every_ten_seconds(tmp_path)
    with pytest.raises(DataError, match=r"line 52: more than 50 requests .* are selected\. Select a shorter window"):
        read_trace(path)
    assert len(read_trace(path, arrivals=RateKnobs(duration_s=500.0)).arrivals) == 50
    with pytest.raises(DataError, match="line 27: more than 50 requests"):
        read_trace(path, arrivals=RateKnobs(scale=2.0))


def test_too_many_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "BLOCKS_MAX", 10)
    with pytest.raises(DataError, match=r"line 4: .* or 10 ids of blocks are selected"):
        read_trace(DATA / "mooncake_synthetic_cut.jsonl")
