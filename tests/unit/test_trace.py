"""Traces: what is in the file comes out in order, and a bad file says where it is bad."""

import gzip
from pathlib import Path

import pytest

from loadline.demo.defaults import TRACE
from loadline.demo.trace import JITTER_S, Arrival, play, read_trace, superpose
from loadline.errors import DataError

HEADER = "arrival_s,isl,osl\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_demo_trace_is_what_its_licence_file_says() -> None:
    arrivals = read_trace(TRACE)
    assert arrivals[0] == Arrival(0.0, 374, 44)
    assert 2_399 < arrivals[-1].arrival_s < 2_400
    assert len(arrivals) / arrivals[-1].arrival_s == pytest.approx(5.9, abs=0.05)
    assert arrivals == sorted(arrivals, key=lambda one: one.arrival_s)


def test_columns_are_found_by_name_and_plain_files_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, "client,osl,arrival_s,isl\na,3,0.5,7\nb,4,1.5,8\n")
    assert read_trace(path) == [Arrival(0.5, 7, 3), Arrival(1.5, 8, 4)]


def test_copies_are_seeded_and_stay_near(tmp_path: Path) -> None:
    one = read_trace(write(tmp_path, HEADER + "".join(f"{i * 10},{i + 1},5\n" for i in range(100))))
    three = superpose(one, 3, seed=5)
    assert three == superpose(one, 3, seed=5) != superpose(one, 3, seed=6)
    assert len(three) == 300
    assert three == sorted(three)
    # The prompt's length tells which arrival each is a copy of.
    assert all(abs(copy.arrival_s - (copy.isl_tokens - 1) * 10) <= JITTER_S for copy in three)
    assert superpose(one, 1) == one


def test_playing_starts_where_asked_and_can_go_on_for_ever(tmp_path: Path) -> None:
    arrivals = read_trace(write(tmp_path, HEADER + "0,1,1\n10,2,1\n20,3,1\n"))
    assert [(one.arrival_s, one.isl_tokens) for one in play(arrivals, start_s=5.0)] == [(5.0, 2), (15.0, 3)]
    again = list(play(arrivals, start_s=15.0, repeat=True, requests_max=5))
    assert [(one.arrival_s, one.isl_tokens) for one in again] == [(5, 3), (5, 1), (15, 2), (25, 3), (25, 1)]


@pytest.mark.parametrize("start_s", [-1.0, 21.0])
def test_a_start_outside_the_trace_is_refused(tmp_path: Path, start_s: float) -> None:
    arrivals = read_trace(write(tmp_path, HEADER + "0,1,1\n20,3,1\n"))
    with pytest.raises(DataError, match="Start within it"):
        play(arrivals, start_s=start_s)


@pytest.mark.parametrize("load", [0, -1, 1_001])
def test_a_load_out_of_bounds_is_refused(load: int) -> None:
    with pytest.raises(DataError, match="number of copies"):
        superpose([Arrival(0.0, 1, 1)], load)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: column 'arrival_s' is missing"),
        ("arrival_s,isl\n", "line 1: column 'osl' is missing"),
        (HEADER, "line 2: there are no requests"),
        (HEADER + "0,1,1\n1,x,1\n", "line 3: '1,x,1' is no request"),
        (HEADER + "0,1\n", "line 2: '0,1' is no request"),
        (HEADER + "5,1,1\n4,1,1\n", "line 3: arrival_s 4.0 is earlier"),
        (HEADER + "nan,1,1\n", "line 2: arrival_s nan"),
        (HEADER + "0,0,1\n", "line 2: isl and osl must be"),
        (HEADER + "0,1,1" + "1" * 2_000, "line 2: longer than"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_trace(write(tmp_path, text))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress((HEADER + "0,1,1\n" * 1_000).encode())[:-20])
    for path in (cut, tmp_path / "missing.csv"):
        with pytest.raises(DataError, match=path.name):
            read_trace(path)
