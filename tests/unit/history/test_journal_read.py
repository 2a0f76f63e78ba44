"""Rows of a journal: what they say, and what a journal that is damaged, cut off or of another version gives."""

import itertools
import json
import re
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadline import journal
from loadline.adapters.file_journal import read_segments
from loadline.adapters.journal_checksums import ChecksumChain
from loadline.errors import JournalError
from loadline.runtime.journal_records import FORMAT

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/journal"
HOW_TO = ROOT / "docs/how-to"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "journal"
    folder.mkdir()
    for segment in GOLDEN.glob("*.jsonl"):
        (folder / segment.name).write_bytes(segment.read_bytes())
    return folder


def recorded(kind: str) -> list[dict[str, Any]]:
    """Return the effects of one kind, as the journal has them."""
    records = (json.loads(line) for _, lines in read_segments(GOLDEN) for line in lines)
    effects = (effect for record in records for effect in record.get("effects", ()))
    return [effect for effect in effects if effect["type"] == kind]


def rewrite(segment: Path, change: tuple[bytes, bytes]) -> None:
    """Change one record, with a valid checksum."""
    [(_, records)] = read_segments(segment)
    checksums = ChecksumChain()
    segment.write_bytes(b"".join(part for one in records for part in checksums.seal(one.replace(*change, 1))))


def test_the_folder_of_an_agent_that_shares_models_names_those_of_its_shards(copy: Path) -> None:
    for shard in (0, 10, 3):
        (copy.parent / f"shard-{shard}").mkdir()
    copy.rename(copy.parent / "shard-3" / "not this one")
    (segment, *_) = GOLDEN.glob("*.jsonl")
    for shard in (10, 3):
        (copy.parent / f"shard-{shard}" / segment.name).write_bytes(segment.read_bytes())
    first = copy.parent / "shard-10"
    expected = f"{copy.parent} has a journal for each of 2 shards. Name the folder of one, such as {first}"
    with pytest.raises(JournalError, match=f"^{re.escape(expected)}$"):
        list(read_segments(copy.parent))
    with pytest.raises(JournalError, match="shard-0 is neither a segment of a journal nor a folder with some"):
        list(read_segments(copy.parent / "shard-0"))


def test_each_decision_has_a_row_for_each_pool_with_its_steps_in_order() -> None:
    rows = [row for row in journal.read(GOLDEN) if row["kind"] == "decision"]
    decisions = [effect["decision"] for effect in recorded("CommitDecision")]
    expected = {
        (one["decision_id"], target["pool"], target["previous"], target["replicas"])
        for one in decisions
        for target in one["targets"]
    }
    assert {(r["id"], r["pool"], r["previous_replicas"], r["replicas"]) for r in rows} == expected
    for row in rows:
        steps = ("reported_at_ms", "at_ms", "committed_at_ms", "announced_at_ms", "accepted_at_ms", "ended_at_ms")
        times = [row[step] for step in steps]
        assert times == sorted(times)
        assert row["reporter"]
        assert row["reasons"]
        assert row["numbers"]
        assert row["text"]
    assert {"applied", "superseded"} <= {row["outcome"] for row in rows}


def test_each_migration_command_has_one_row() -> None:
    rows = [row for row in journal.read(GOLDEN) if row["kind"] == "migration"]
    commands = {effect["migration"]["command_id"]: effect["migration"] for effect in recorded("SendMigrate")}
    assert Counter(row["id"] for row in rows) == Counter(commands.keys())
    for row in rows:
        assert row["source"] == commands[row["id"]]["source"]["worker"]
        assert row["outcome"] != "done" or row["moved"] + row["failed"] == row["requests"] > 0
    assert {"done", "aborted", "refused", "lost"} <= {row["outcome"] for row in rows}


def test_holds_of_a_pool_follow_each_other_without_an_overlap() -> None:
    rows = [row for row in journal.read(GOLDEN) if row["kind"] == "hold"]
    assert max(row["plans"] for row in rows) > 5, "equal plans are joined"
    for pool in {(row["model"], row["pool"]) for row in rows}:
        own = [row for row in rows if (row["model"], row["pool"]) == pool]
        pairs = itertools.pairwise(own)
        assert all(
            first["ended_at_ms"] is None or first["ended_at_ms"] <= second["at_ms"]
            for first, second in pairs
            if second["at_ms"] >= first["at_ms"]
        )
    assert [row["ended_at_ms"] for row in rows][-1] is None, "the present hold is open, and last"


def test_rows_end_in_order_and_open_ones_come_last() -> None:
    ends = [row["ended_at_ms"] for row in journal.read(GOLDEN / min(GOLDEN.glob("*.jsonl")).name)]
    closed = [end for end in ends if end is not None]
    assert closed == sorted(closed)
    assert ends[: len(closed)] == closed


def test_a_model_and_a_time_select_rows() -> None:
    rows = list(journal.read(GOLDEN))
    assert {row["model"] for row in journal.read(GOLDEN, model="whole")} == {"whole"}
    since_ms = rows[-1]["at_ms"] - 1_000
    late = list(journal.read(GOLDEN, since_ms=since_ms))
    assert 0 < len(late) < len(rows)
    assert all(row["ended_at_ms"] is None or row["ended_at_ms"] >= since_ms for row in late)
    assert {row["id"] for row in rows if (row["ended_at_ms"] or since_ms) >= since_ms} >= {row["id"] for row in late}


def test_a_time_skips_the_segments_before_it(copy: Path) -> None:
    first, second, third = sorted(copy.glob("*.jsonl"))
    start_ms = json.loads(third.read_bytes().partition(b"\n")[0])["now"]
    for segment in (first, second):  # neither can be replayed
        rewrite(segment, (b'{"kind":"turn"', b'{"kind":"turned"'))
    assert list(journal.read(copy, since_ms=start_ms))
    with pytest.raises(journal.JournalError, match="not a journal record"):
        list(journal.read(copy, since_ms=start_ms - 1))


def test_a_journal_that_is_cut_off_gives_its_whole_records_and_a_warning(copy: Path) -> None:
    last = max(copy.glob("*.jsonl"))
    whole = last.read_bytes()
    end = whole.rindex(b"\n", 0, len(whole) - 2) + 20
    last.write_bytes(whole[:end])
    rows = journal.read(copy)
    found = [next(rows)]
    with pytest.warns(journal.JournalCutOff, match=rf"{last.name}: cut off after record \d+"):
        found += rows
    assert len(found) > 60


def test_a_changed_record_ends_the_rows_with_its_place(copy: Path) -> None:
    last = max(copy.glob("*.jsonl"))
    rewrite(
        last,
        (b'"type":"SendMigrate","migration":{"command_id":"', b'"type":"SendMigrate","migration":{"command_id":"x'),
    )
    found = []
    with pytest.raises(journal.JournalError, match=rf"{last.name}, record \d+: the replay gives"):  # noqa: PT012 - rows first
        for row in journal.read(copy):
            found.append(row)  # noqa: PERF402 - those before the error count
    assert len(found) > 40


def test_another_format_names_the_version_that_reads_it(copy: Path) -> None:
    first = min(copy.glob("*.jsonl"))
    rewrite(first, (b'"format":%d' % FORMAT, b'"format":%d' % (FORMAT - 1)))
    with pytest.raises(journal.JournalError, match=rf"format {FORMAT - 1} was written by loadline .*; replay it with"):
        next(journal.read(copy))


def test_no_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(journal.JournalError, match="neither a segment of a journal nor a folder"):
        next(journal.read(tmp_path))


def test_memory_does_not_grow_with_the_journal(copy: Path) -> None:
    def peak_bytes(path: Path) -> int:
        tracemalloc.start()
        try:
            for _row in journal.read(path):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    segment = max(copy.glob("*.jsonl"))
    peak_bytes(segment)  # imports
    once = peak_bytes(segment)
    # Each copy of the segment begins with its snapshot, as after a restart of the agent.
    content = segment.read_bytes().replace(b'"continues":true', b'"continues":false', 1)
    checksums = ChecksumChain()
    lines = [line.rpartition(b',"crc32"')[0] + b"}" for line in content.splitlines()]
    content = b"".join(part for line in lines for part in checksums.seal(line))
    folder = copy.parent / "long"
    folder.mkdir()
    for number in range(8):
        (folder / f"20240101T000000.000Z-{number:06}.jsonl").write_bytes(content)
    assert peak_bytes(folder) < 1.5 * once


def test_the_progress_rises_to_the_end_over_all_segments_that_are_read(copy: Path) -> None:
    def progress(since_ms: int) -> list[float]:
        found: list[float] = []
        add = lambda done_mb, total_mb: found.append(done_mb / total_mb)  # noqa: E731
        assert list(journal.read_rows(copy, since_ms=since_ms, on_progress=add))
        assert found == sorted(set(found))
        return found

    start_ms = json.loads(max(copy.glob("*.jsonl")).read_bytes().partition(b"\n")[0])["now"]
    whole, last = progress(0), progress(start_ms)
    assert len(whole) > len(last) > 0
    assert 0.5 < whole[-1] <= 1.0


def test_the_reference_has_each_column() -> None:
    text = (ROOT / "docs/reference/history.md").read_text("utf-8")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == [
        *sorted(journal.COLUMNS, key=lambda name: text.index(f"`{name}`"))
    ]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(journal.COLUMNS)


def test_the_notebook_runs_on_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    notebook = json.loads((HOW_TO / "analyse-the-history.ipynb").read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "journal").symlink_to(GOLDEN)
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - our own notebook
    assert len(names["times"]) >= 7
    assert len(names["waits"]) >= 3


def test_the_five_lines_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    text = (HOW_TO / "analyse-the-history.md").read_text("utf-8")
    [lines] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "journal").symlink_to(GOLDEN)
    exec(lines, {})  # noqa: S102 - our own document
    assert "applied" in capsys.readouterr().out
