"""Invalid trace files: one error that names file, line and remedy."""

import gzip
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loadline.errors import DataError
from loadline.traces import RateKnobs, Trace, line_reader, read_trace, requests

GENERIC = "arrival_s,isl,osl\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
SERIES = "t,num_req,mean_isl,mean_osl\n"
GOOD = '{"timestamp": 0, "input_length": 9, "output_length": 1}\n'
T = "2023-11-16 18:15:46"


def line(timestamp: str = "0", isl: str = "9", more: str = "") -> str:
    return f'{{"timestamp": {timestamp}, "input_length": {isl}, "output_length": 1{more}}}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file is empty. Name"),
        (
            "\n",
            "line 1: '' is not the first line of a known trace format. Name CSV with the column arrival_s",
        ),
        (
            "session,t_s,isl,osl\n1,0,1,1\n",
            "line 1: 'session,t_s,isl,osl' is not the first line",
        ),
        ("arrival_s,isl\n", "line 1: column 'osl' is missing. Add it; the columns are 'arrival_s, isl'"),
        ("arrival_s;isl;osl\n0;1;1\n", "line 1: 'arrival_s;isl;osl' is not the first line"),
        (GENERIC, "line 2: there are no requests"),
        (GENERIC + "0,1,1\n1,x,1\n", "line 3: '1,x,1' is not a row of arrival_s, isl, osl. Correct or drop the line"),
        (GENERIC + "0,1\n", "line 2: '0,1' is not a row"),
        (GENERIC + "0,1,\n", "line 2: '0,1,' is not a row"),
        (GENERIC + "0,1.5,1\n", "line 2: '0,1.5,1' is not a row"),
        (GENERIC + "5,1,1\n\n4,1,1\n", "line 4: the arrival, 4.0 s, is earlier than the previous one, 5.0 s. Sort"),
        (GENERIC + "-1,1,1\n", "line 2: the arrival, -1.0 s, is not within"),
        (GENERIC + "nan,1,1\n", "line 2: the arrival, nan s"),
        (GENERIC + "inf,1,1\n", "line 2: the arrival, inf s"),
        (GENERIC + "1700000000,1,1\n", "line 2: the arrival, .* Count from the start of the trace"),
        (GENERIC + "0,0,1\n", "line 2: the lengths, 0 and 1 tokens, are not within 1..1000000. Drop"),
        (GENERIC + "0,1,-1\n", "line 2: the lengths"),
        (GENERIC + "0,1000001,1\n", "line 2: the lengths"),
        (GENERIC + "0,1," + "9" * 5_000 + "\n", "line 2: .* is not a row"),
        (GENERIC + '0,1,"1' + "x" * 60_000 + ("\n" + "x" * 60_000) * 3, "line 4: is not CSV"),
        ("arrival_s,isl,osl,hit_blocks\n0,1,1,-1\n", "line 2: hit_blocks is negative"),
        ("arrival_s,isl,osl,arrival_dith_s\n0,1,1,2\n0,1,1,-3\n", "line 3: the arrival, -3.0 s"),
        (GENERIC + "0,1,1" + "1" * 70_000, "line 2: is longer than 65536 bytes"),
        ("x" * 70_000, "line 1: is longer than 65536 bytes"),
        ("TIMESTAMP,ContextTokens\n", "line 1: column 'GeneratedTokens' is missing"),
        (
            AZURE + "yesterday,1,1\n",
            "line 2: 'yesterday,1,1' is not a row of TIMESTAMP, ContextTokens, Gen",
        ),
        (AZURE + f"{T},1,1\n{T}+00:00,1,1\n", r"line 3: '.*\+00:00,1,1' is not a row"),
        (AZURE + f"{T},1,1\n2023-11-16 18:15:45,1,1\n", "line 3: the arrival, -1.0 s, is earlier"),
        (AZURE + f"{T},1,1\n2033-11-16 18:15:45,1,1\n", "line 3: the arrival, .* is not within"),
        (AZURE + f"{T},0,1\n", "line 2: the lengths"),
        (GOOD + "{\n", r"line 2: '\{' is not a request .* Write timestamp, input_length, output_length and hash_ids"),
        (GOOD + "\n[1]\n", "line 3: .* is not a request"),
        ('{"timestamp": 0, "input_length": 9}\n', "line 1: .* missing required field `output_length`"),
        (line(isl="0"), "line 1: the lengths, 0 and 1"),
        (line(isl='"9"'), "line 1: .* is not a request"),
        (line("-1"), "line 1: the arrival, -0.001 s, is not within"),
        (line("NaN"), "line 1: .* is not a request"),
        (line("1e400"), "line 1: "),
        (line("2") + line("1"), "line 2: the arrival, 0.001 s, is earlier"),
        (line(more=', "hash_ids": [1, 2]'), "line 1: 2 hash_ids, but 9 tokens are 1 blocks. Name blocks of 512"),
        (line(more=', "hash_ids": [-1]'), "line 1: .* is not a request"),
        (line(more=', "x": ' + "[" * 30_000 + "]" * 30_000), "line 1: .* is not a request"),
        (line(more=', "hash_ids": ' + "[" * 30_000 + "]" * 30_000), "line 1: .* is not a request"),
        ("t,num_req,mean_isl\n", "line 1: column 'mean_osl' is missing"),
        (SERIES, "line 2: there are fewer than two bins"),
        (SERIES + "0,1,1,1\n", "line 3: there are fewer than two bins"),
        (SERIES + "0,1,1,1\n0,1,1,1\n", "line 3: t, 0.0 s, is not 0.001 s or more after .* Sort the series"),
        (SERIES + "0,1,1,1\n60,1,1,1\n90,1,1,1\n", "line 4: t is -30 s after the end .* and bins are 60 s wide"),
        (SERIES + "0,1,1,1\n60,1,1,1\n150,1,1,1\n", "line 4: t is 30 s after the end of the previous bin"),
        (SERIES + "-60,1,1,1\n", "line 2: t, -60.0 s, is negative"),
        (SERIES + "nan,1,1,1\n", "line 2: t, nan s"),
        (SERIES + "0,1,1,1\n1e9,1,1,1\n", "line 3: t, 1000000000.0 s, .* more than"),
        (SERIES + "0,-1,1,1\n", "line 2: '0,-1,1,1' is not a row of t, num_req, mean_isl, mean_osl"),
        (SERIES + "0,nan,1,1\n", "line 2: .* is not a row"),
        (SERIES + "0,1e10,1,1\n", "line 2: .* is not a row"),
        (SERIES + "0,1,x,1\n", "line 2: .* is not a row"),
        (SERIES + "0,1,1\n", "line 2: .* is not a row"),
        (SERIES + "0,1,0,1\n", "line 2: a mean length is 0 where there are requests. Write the mean"),
        (SERIES + "0,0,,\n60,0,,\n", "line 4: there are no requests"),
        (SERIES + "0,1,1,1\n60,,1,1\n", "line 3: there is no data from 60 s to 120 s"),
    ],
)
def test_an_invalid_line_is_named_with_its_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as refused:
        read_trace(path)
    assert str(refused.value).startswith(f"{path}, line ")
    assert len(str(refused.value)) < len(str(path)) + 400
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            gzip.compress((GENERIC + "0,1,1\n" * 1_000).encode(), mtime=0)[:-20],
            "cannot be read .* Download or compress",
        ),
        (gzip.compress((GENERIC + "0,1,1\n" * 1_000).encode(), mtime=0)[:5], "line 1: cannot be read"),
        (gzip.compress((GENERIC + "0,1,1\n").encode(), mtime=0)[:-8] + bytes(8), "line [123]: cannot be read"),
        (b"\x1f\x8b\x08" + bytes(30), "line 1: cannot be read"),
        (b"\x1f\x8b\xff\xff", "line 1: cannot be read"),
        (gzip.compress(b"", mtime=0), "line 1: the file is empty"),
        (gzip.compress(b"x" * 10_000_000, mtime=0), "line 1: is longer than"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "line 1: is not UTF-8 text"),
        (GENERIC.encode() + b"0,1,1\n\xff,1,1\n", "line 3: is not UTF-8 text"),
        (bytes(100), r"line 1: '.*' is not the first line of a known trace format"),
        (GENERIC.encode("utf-16"), "line 1: is not UTF-8 text"),
    ],
)
def test_binary_files_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as refused:
        read_trace(path)
    assert str(refused.value).startswith(f"{path}, line ")


def test_a_damaged_file_gives_no_partial_trace(tmp_path: Path) -> None:
    """A thousand rows of a truncated gzip are readable; the window decides whether the loss matters."""
    path = tmp_path / "cut.csv.gz"
    text = GENERIC + "".join(f"{i},{i * 7919 % 1000 + 1},5\n" for i in range(20_000))
    path.write_bytes(gzip.compress(text.encode(), mtime=0)[:-100])
    with pytest.raises(DataError, match=r"line [0-9]{4,}: cannot be read"):
        read_trace(path)
    assert len(read_trace(path, arrivals=RateKnobs(duration_s=1_000.0)).arrivals) == 1_000


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.csv")
    for path in (tmp_path / "missing.csv", tmp_path, tmp_path / "fifo.csv", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(DataError, match=r"cannot be opened: .* Name a trace in CSV or JSON Lines") as refused:
            read_trace(path)
        assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize("text", [GENERIC + "0,1,1\n5,1,1\n", SERIES + "0,9,1,1\n3,9,1,1\n"])
def test_a_window_after_the_end_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"ends at (5|6) s, before the start at 10 s\. Start within it"):
        read_trace(path, arrivals=RateKnobs(start_s=10.0))


def test_a_window_without_requests_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(GENERIC + "0,1,1\n50,1,1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"there are no requests\. .* wider window"):
        read_trace(path, arrivals=RateKnobs(start_s=10.0, duration_s=5.0))


def test_lines_and_requests_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "LINES_MAX", 10)
    monkeypatch.setattr(requests, "REQUESTS_MAX", 5)
    path = tmp_path / "trace.csv"
    path.write_text(GENERIC + "\n" * 20, encoding="utf-8")
    with pytest.raises(DataError, match="line 11: the file has more than 10 lines"):
        read_trace(path)
    path.write_text("arrival_s,isl,osl,arrival_dith_s\n" + "0,1,1,1\n" * 6, encoding="utf-8")
    with pytest.raises(DataError, match="line 7: the file has more than 5 requests"):
        read_trace(path)


CELLS = st.sampled_from(
    ["0", "1", "7", "60", "120", "-1", "nan", "inf", "", "x", '"', "1e9", T, T + "+00:00", "\0", "é"]
)
TABLES = st.builds(
    lambda header, rows: (header + "".join(",".join(row) + "\n" for row in rows)).encode(),
    st.sampled_from(
        [GENERIC, AZURE, SERIES, "arrival_s,isl,osl,hit_blocks,arrival_dith_s\n", "t,num_req,mean_isl,mean_osl,gap\n"]
    ),
    st.lists(st.lists(CELLS, min_size=2, max_size=6), max_size=5),
)
OBJECTS = st.dictionaries(
    st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]),
    st.sampled_from(["0", "1", "-1", "1e3", "1e400", "[1]", "[]", "null", '"x"', "[[", "1.5", '"\\ud800"']),
)
JSON = st.lists(OBJECTS).map(
    lambda rows: "\n".join(
        "{" + ",".join(f'"{key}":{value}' for key, value in one.items()) + "}" for one in rows
    ).encode()
)
_numbers = itertools.count()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(st.binary(max_size=300), TABLES, JSON), packed=st.booleans(), skip=st.booleans())
@example(data=b"\xef\xbb\xbf", packed=False, skip=False)
@example(
    data=AZURE.encode() + b"0001-01-01T00:00:00+23:59,1,1\n9999-12-31T23:59:59-23:59,1,1\n", packed=False, skip=False
)
def test_any_bytes_are_a_trace_or_an_error(tmp_path: Path, *, data: bytes, packed: bool, skip: bool) -> None:
    path = tmp_path / f"{next(_numbers)}"
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    try:
        trace = read_trace(path, arrivals=RateKnobs(gaps="skip" if skip else "error", isl_tokens=5, osl_tokens=5))
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right, and both are checked
    else:
        assert isinstance(trace, Trace)
        assert trace.arrivals
        assert trace.arrivals == sorted(trace.arrivals, key=lambda one: one.arrival_s)
        assert all(
            0 <= one.arrival_s <= trace.duration_s and one.isl_tokens > 0 < one.osl_tokens for one in trace.arrivals
        )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_gzip_is_a_trace_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    packed_data = bytearray(gzip.compress((GENERIC + "".join(f"{i},{i + 1},5\n" for i in range(50))).encode(), mtime=0))
    for at in data.draw(st.lists(st.integers(2, len(packed_data) - 1), max_size=3)):
        packed_data[at] = data.draw(st.integers(0, 255))
    path = tmp_path / f"{next(_numbers)}.csv.gz"
    path.write_bytes(packed_data[: data.draw(st.integers(0, len(packed_data)))])
    try:
        assert len(read_trace(path).arrivals) == 50
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right, and both are checked
