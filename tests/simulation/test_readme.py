"""The documents show what the simulations print; simulations are reproducible."""

import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest

from loadline.cli.main import main
from tests.support import contended_systems

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_SHOWN = re.compile(
    r"^( *)```console\n *\$ \S*loadline ((?:compare|simulate) [^`]*)```\n\n *```text\n(.*?)^\1```",
    re.DOTALL | re.MULTILINE,
)
SIMULATIONS = {
    str(path.relative_to(ROOT)): (command.replace("\\\n", " "), dedent(text))
    for path in DOCUMENTS
    for _, command, text in _SHOWN.findall(path.read_text("utf-8"))
}


def test_the_simulations_of_the_documents_are_found() -> None:
    assert SIMULATIONS.keys() == {"README.md", "docs/explanation/migration.md", "docs/tutorials/compare-policies.md"}


@pytest.mark.parametrize("document", SIMULATIONS)
def test_the_document_shows_the_output_of_the_command(
    document: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, shown = SIMULATIONS[document]
    monkeypatch.chdir(ROOT)
    assert main([*shlex.split(command), "--quiet"]) == 0
    printed = capsys.readouterr().out.splitlines()
    if command.startswith("compare"):
        del printed[:2]  # the documents leave out its title and the objectives
    # Any new field of a result changes the digest, which tells nobody anything about another run.
    lines = [re.sub(r"^(digest +)\w+$", r"\1...", line).rstrip() for line in printed]
    assert lines == shown.splitlines()


def test_the_document_shows_how_good_allocations_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "explanation" / "allocation.md").read_text("utf-8")
    [(systems, shown)] = re.findall(
        r"contended_systems (\d+)\n```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    contended_systems.main(int(systems))
    assert capsys.readouterr().out == shown
