"""The completion script knows every command, its options, choices and file names."""

import shutil
import subprocess
from pathlib import Path

import pytest

from loadline.cli.completion import SHELLS
from loadline.cli.main import main, parser


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_completed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    (commands,) = (action.choices for action in parser()._actions if action.choices)
    assert commands
    assert [name for name in commands if name not in text] == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["expl"], ["explain"]),
        (["simulate", "--tra"], ["--trace"]),  # an option of a module that is imported late
        (["scaler", "kubernetes", "val"], ["validate"]),
        (["up", "--mode", "agg"], ["aggregated"]),
        (["check", "--config", "agent."], ["agent.toml"]),
    ],
)
def test_bash_completes(words: list[str], found: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "agent.toml").touch()
    (tmp_path / "completion").write_text(script("bash", capsys))
    line = ["loadline", *words]
    asked = f"""
        source completion
        COMP_WORDS=({" ".join(line)}); COMP_CWORD={len(line) - 1}
        $(complete -p loadline | sed 's/.*-F \\([^ ]*\\).*/\\1/') loadline {line[-1]} {line[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S607
    assert done.stdout.split() == found, done.stderr
