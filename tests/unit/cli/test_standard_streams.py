"""Commands whose standard streams are closed, full, or read by nobody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OUTPUTS = (["version"], ["--help"], ["completion", "bash"])
"""The last one prints more than a buffer of 8 KiB, so writing it fails within the command."""

GONE = "| (exec <&-; sleep 0.1)"
"""Reader that ends at once."""
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
FIRST_SEGMENT = Path(__file__).parents[2] / "golden" / "journal" / "20240101T000000.000Z-000000.jsonl"

FILES = """
import os
from loadline.adapters import standard_streams
standard_streams.open_closed()
print([os.readlink(f"/proc/self/fd/{number}") for number in range(3)], file=open(os.sys.argv[1], "w"))
"""


def run(command: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a command through the shell, with stdout buffered as it is for users."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    shell = ["bash", "-o", "pipefail", "-c", f'"$@" {redirection}', "bash", sys.executable]
    return subprocess.run([*shell, *command], capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize("command", OUTPUTS, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(command: list[str]) -> None:
    done = run(["-m", "loadline", *command], GONE)
    assert (done.returncode, done.stderr) == (0, "")


@needs_full
@pytest.mark.parametrize("command", OUTPUTS[:2], ids=" ".join)
def test_output_that_cannot_be_written_is_an_error_that_names_it(command: list[str]) -> None:
    done = run(["-m", "loadline", *command], "> /dev/full")
    assert done.returncode == 1
    expected = (
        "stdout: cannot be written: No space left on device. Free some space there, or write the output elsewhere"
    )
    assert done.stderr == f"loadline: {expected}.\n"


@pytest.mark.parametrize("redirection", [GONE, pytest.param("> /dev/full", marks=needs_full)])
def test_an_error_of_the_command_is_told_although_its_output_cannot_be_written(
    redirection: str, tmp_path: Path
) -> None:
    segment = tmp_path / "segment.jsonl"
    lines = FIRST_SEGMENT.read_text("utf-8").splitlines(keepends=True)
    segment.write_text("".join([*lines[:40], "garbage\n", *lines[40:]]), "utf-8")
    done = run(["-m", "loadline", "history", "--journal", str(segment)], redirection)
    assert done.returncode == 1
    assert done.stderr.startswith(f"loadline: {segment}, record 41: ")


@pytest.mark.parametrize("redirection", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-", ">&-"])
def test_commands_run_without_standard_streams(redirection: str) -> None:
    done = run(["-m", "loadline", "version"], redirection)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("loadline ") != (">&-" in redirection.replace("2>&-", ""))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
def test_no_other_file_gets_the_number_of_a_closed_standard_stream(tmp_path: Path) -> None:
    done = run(["-c", FILES, str(tmp_path / "files")], "<&- >&- 2>&-")
    assert done.returncode == 0
    assert (tmp_path / "files").read_text("utf-8") == f"{['/dev/null'] * 3}\n"
