"""``loadline history``: its formats, its selection and its errors."""

import argparse
import csv
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from loadline import journal
from loadline.cli import remote
from loadline.cli.history import since
from loadline.cli.main import main
from loadline.core.vocabulary.reasons import Explanation, Reason, ReasonCode, Recommendation

GOLDEN = Path(__file__).parents[3] / "tests/golden/journal"


def run(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["history", "--journal", str(GOLDEN), *options]) == 0
    return capsys.readouterr().out


def test_the_text_fits_80_columns_and_has_reasons_and_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert "decision  whole/both  3 -> 4 workers  applied after 0.1 s" in text
    assert "10.00 requests wait per worker, target 5" in text
    assert "decode_load" in text


def test_a_journal_without_rows_of_a_model_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--journal", str(GOLDEN), "--model", "nope", "--json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out) == []
    assert done.err.splitlines()[-1] == "loadline: no decision, hold or migration of model nope is recorded"


def test_json_and_csv_have_the_rows_of_the_journal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(journal.read(GOLDEN, model="split"))
    assert json.loads(run(capsys, "--json", "--model", "split")) == rows
    header, *lines = csv.reader(run(capsys, "--csv", "--model", "split").splitlines())
    assert tuple(header) == journal.COLUMNS
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert json.loads(line[header.index("numbers")]) == row["numbers"]
        assert line[header.index("ended_at_ms")] == ("" if row["ended_at_ms"] is None else str(row["ended_at_ms"]))


def test_parquet_has_the_rows_with_their_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows, file = list(journal.read(GOLDEN)), tmp_path / "history.parquet"
    assert run(capsys, "--parquet", str(file)) == f"{len(rows)} rows in {file}\n"
    table = parquet.read_table(file)
    assert table.column_names == list(journal.COLUMNS)
    assert str(table.schema.field("at_ms").type) == "timestamp[ms, tz=UTC]"
    assert [int(at.timestamp() * 1000 + 0.5) for at in table["at_ms"].to_pylist()] == [row["at_ms"] for row in rows]
    assert [dict(numbers) for numbers in table["numbers"].to_pylist()] == [row["numbers"] for row in rows]
    assert list(tmp_path.iterdir()) == [file]


def test_a_parquet_file_is_not_left_half_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    assert main(["history", "--journal", str(tmp_path), "--parquet", str(tmp_path / "h.parquet")]) == 1
    assert "Name the agent's `journal.directory`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["history", "--journal", str(GOLDEN), "--parquet", str(tmp_path / "no/h.parquet")]) == 1
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_a_parquet_file_replaces_no_file_of_its_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    copy = tmp_path / "journal"
    shutil.copytree(GOLDEN, copy)
    before = {file: file.read_bytes() for file in copy.iterdir()}
    segment, alias = min(before), tmp_path / "alias"
    alias.symlink_to(segment)
    for source, file in [(copy, segment), (segment, segment), (copy, alias)]:
        assert main(["history", "--journal", str(source), "--parquet", str(file)]) == 2
        expected = f"loadline: --parquet: {file} is a file of the journal. Name another file.\n"
        assert capsys.readouterr().err == expected
    assert {file: file.read_bytes() for file in copy.iterdir()} == before


def test_a_parquet_file_replaces_no_device_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    fifo = tmp_path / "fifo"  # as /dev/null, which root could replace
    os.mkfifo(fifo)
    for path, kind in [(fifo, "not a regular file"), (tmp_path, "a folder")]:
        assert main(["history", "--journal", str(GOLDEN), "--parquet", str(path)]) == 2
        assert capsys.readouterr().err == f"loadline: --parquet: {path} is {kind}. Name a file.\n"
    assert fifo.is_fifo()


def test_without_its_extra_parquet_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadline.cli.extras.find_spec", lambda _name: None)
    assert main(["history", "--journal", str(GOLDEN), "--parquet", "x.parquet"]) == 2
    assert "pip install 'loadline-agent[parquet]'" in capsys.readouterr().err


def test_formats_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--csv", "--json"], ["--parquet", "x", "--output", "csv"]):
        with pytest.raises(SystemExit) as ended:
            main(["history", "--journal", str(GOLDEN), *options])
        assert ended.value.code == 2
        assert "not allowed with argument" in capsys.readouterr().err


def test_a_journal_that_is_cut_off_is_a_warning_after_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = tmp_path / "20240101T000000.000Z-000000.jsonl"
    segment.write_bytes(min(GOLDEN.glob("*.jsonl")).read_bytes()[:-30])
    assert main(["history", "--journal", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "decision" in shown.out
    assert shown.err.startswith(f"loadline: warning: {segment}: cut off after record ")


def test_an_agent_gives_the_decisions_that_it_remembers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = Reason.of(ReasonCode.FIXED_COUNT, "d", replicas=3)
    plan = Recommendation("static", {"d": 3}, (reason,), {})
    newest = [Explanation("m", at, "decided", f"id{at}", {"d": 2}, (plan,), (), {"d": 3}) for at in (3_000, 2_000)]
    asked: list[str] = []

    def answer(_options: argparse.Namespace, model: str) -> list[Explanation]:
        asked.append(model)
        return newest

    monkeypatch.setattr(remote, "explanations", answer)
    assert main(["history", "--model", "m", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert asked == ["m"]
    assert [(row["id"], row["outcome"], row["replicas"]) for row in rows] == [
        ("id2000", "decided", 3),
        ("id3000", "decided", 3),
    ]
    assert rows[0]["numbers"] == {"fixed_count.replicas": 3.0}


def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    assert since("1h") == 6_400_000
    assert since("30m") == 8_200_000
    assert since("1d") == 0
    assert since("1970-01-01T01:00:00Z") == since("1970-01-01T01:00:00") == 3_600_000
    assert since("1970-01-01T01:00:00+01:00") == 0


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1w", "yesterday", "99999999h", "inf"])
def test_other_times_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["history", "--journal", str(GOLDEN), f"--since={text}"])
    assert ended.value.code == 2
    assert "neither an age such as 30m" in capsys.readouterr().err
