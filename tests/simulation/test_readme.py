"""The comparison in README.md has the figures that the command prints; simulations are reproducible."""

import re
import shlex
from pathlib import Path

import pytest

from loadline.cli.main import main

ROOT = Path(__file__).parents[2]


def test_the_readme_shows_the_output_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    [(command, shown)] = re.findall(
        r"^\$ \S*loadline (compare .*?)\n```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(ROOT)
    assert main([*shlex.split(command.replace("\\\n", " ")), "--quiet"]) == 0
    _title, printed = capsys.readouterr().out.split("\n", 1)
    assert printed.splitlines() == shown.splitlines()
