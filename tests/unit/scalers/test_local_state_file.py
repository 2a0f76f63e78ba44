"""State file of the local scaler: whole or as before, of one scaler, and never overwritten if it is not understood."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loadline.adapters.process_identity import ProcessIdentity
from loadline.errors import ConfigError
from loadline.scalers.local.host import Allotment
from loadline.scalers.local.plan import Process
from loadline.scalers.local.state_file import SavedState, SavedWorker, StateFile

WORKER = SavedWorker("m", "p", 1, Process("p-1", 5, 7), Allotment(0, 8_100, ("0",)), ProcessIdentity(9, 8, "b"), "")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    with StateFile(path, "loadline/local") as file:
        assert file.read() == SavedState("loadline/local", {})
        file.write({"p": 2}, [WORKER])
    with StateFile(path, "loadline/local") as file:
        assert file.read() == SavedState("loadline/local", {"p": 2}, (WORKER,))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"kind":"loadline local sc',
        b'{"scaler":"loadline/local","numbers":{}}'.replace(b"}", b',"version":2}', 2),
        b'{"scaler":"loadline/local","numbers":{},"workers":[],"kind":"something else"}',
        b'{"scaler":"loadline/other","numbers":{},"workers":[]}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_damaged_or_foreign_file_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with StateFile(path, "loadline/local") as file, pytest.raises(ConfigError, match="may run and hold GPUs"):
        file.read()
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("numbers", "workers", "says"),
    [
        ({"p": 2}, [WORKER, WORKER], "lists p-1 twice"),
        ({"p": 1}, [WORKER], "next number of p is not above that of p-1"),
        ({}, [WORKER], "next number of p is not above that of p-1"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, numbers: dict[str, int], workers: list[SavedWorker], says: str
) -> None:
    with StateFile(tmp_path / "state.json", "loadline/local") as file:
        file.write(numbers, workers)
        with pytest.raises(ConfigError, match=says):
            file.read()


@pytest.mark.parametrize(("make", "says"), [(os.mkfifo, "a FIFO"), (os.mkdir, "a folder")])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, make: Callable[[Path], None], says: str) -> None:
    path = tmp_path / "state.json"
    make(path)
    with StateFile(path, "loadline/local") as file, pytest.raises(ConfigError, match=says):
        file.read()  # without a check, a FIFO would block it for ever


def test_a_failed_write_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    with StateFile(path, "loadline/local") as file:
        file.write({}, [WORKER])
        before = path.read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr("os.fsync", full_disk)
            with pytest.raises(OSError, match="full"):
                file.write({}, [])
        assert path.read_bytes() == before
        file.write({}, [])
        assert file.read().workers == ()


def test_a_second_scaler_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with (
        StateFile(path, "loadline/local"),
        pytest.raises(ConfigError, match="another scaler uses"),
        StateFile(path, "loadline/local"),
    ):
        pass
    with StateFile(path, "loadline/local"):
        pass


def test_a_folder_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"), StateFile(tmp_path / "file" / "state.json", "s"):
        pass


def full_disk(_file: int) -> None:
    raise OSError("the disk is full")
