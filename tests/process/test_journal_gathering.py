"""Records of a journal are written together, unless a turn has effects."""

from pathlib import Path

import pytest

from loadline.adapters import file_journal
from loadline.adapters.file_journal import FileJournal
from tests.waiting import until_true

pytestmark = pytest.mark.process

MB = 2**20


@pytest.mark.parametrize("urgent", ["record", "close"])
def test_records_wait_for_others_but_not_for_those_of_a_turn_with_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, urgent: str
) -> None:
    monkeypatch.setattr(file_journal, "_GATHER_S", 3_600.0)
    journal = FileJournal(tmp_path, MB, MB)
    journal.begin(lambda _continues: b'{"snapshot":0}')
    journal.append(b'{"turn":0}')
    assert not list(tmp_path.glob("*.jsonl")), "an hour is not over"
    if urgent == "record":
        journal.append(b'{"effects":[]}', at_once=True)
        until_true(lambda: not journal._queued_bytes)
        journal.append(b'{"turn":1}')
    journal.close()
    [segment] = (path.read_bytes().splitlines() for path in tmp_path.glob("*.jsonl"))
    assert len(segment) == (4 if urgent == "record" else 2)
    assert journal.lost == 0
