"""Secrets in files: what is left of a text, and what is no secret."""

import os
from pathlib import Path

import pytest

from loadline.toml.secret_file import read_secret


def test_white_space_and_a_byte_order_mark_are_no_part_of_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(" pass word \r\n", "utf-8-sig", newline="")
    assert read_secret(path) == "pass word"
    assert read_secret(str(path)) == "pass word"


def test_a_fifo_is_refused_at_once_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "password"
    os.mkfifo(path)
    with pytest.raises(OSError, match=r"not a regular file, but a FIFO or a device: '.*password'"):
        read_secret(path)


@pytest.mark.parametrize(("data", "problem"), [(b"x" * 65_537, "larger than 65536 bytes"), (b"\xff", "utf-8")])
def test_a_file_that_is_too_large_or_no_text_is_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "password"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=problem):
        read_secret(path)
