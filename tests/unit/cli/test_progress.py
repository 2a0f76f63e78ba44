"""Progress of long commands: a bar with rate and end on a terminal, and nothing elsewhere."""

import os
import pty
import subprocess
import sys

import pytest

from loadline.cli.progress import progress_display, rate_text

SCRIPT = """
from loadline.cli.progress import progress_display
with progress_display("counting", "sheep") as on_progress:
    for done in range(1, 101):
        on_progress(done, 200)
"""


def test_nothing_is_printed_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display("counting", "sheep") as on_progress:
        on_progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_progress_rate_and_time_left() -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
        assert process.wait(timeout=60) == 0
    os.close(ours)
    text = shown.decode()
    assert "counting" in text
    assert " 50%" in text
    assert "sheep/s" in text or "sheep/min" in text
    assert ":00" in text, "the time left"


@pytest.mark.parametrize(
    ("done", "elapsed_s", "text"),
    [(0, 5, ""), (5, 0, ""), (3_000, 2, "1,500 runs/s"), (1, 120, "0.5 runs/min"), (59, 60, "59.0 runs/min")],
)
def test_a_rate_is_by_the_second_or_by_the_minute(done: float, elapsed_s: float, text: str) -> None:
    assert rate_text(done, elapsed_s, "runs") == text
