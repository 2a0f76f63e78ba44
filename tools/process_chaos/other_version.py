"""Another version of the agent, out of git, with the installed dependencies."""

import os
import subprocess
import sys
from pathlib import Path


class OtherVersion:
    """Code of a revision.

    Args:
        revision: Tag or commit.
        folder: Folder for its files; created.

    Raises:
        CalledProcessError: The repository does not have the revision.
    """

    def __init__(self, revision: str, folder: Path) -> None:
        self._code = folder / "agent"
        folder.mkdir(parents=True)
        archive = folder / "agent.tar"
        for command in (
            ["git", "archive", "--output", str(archive), revision, "agent"],
            ["tar", "--extract", "--file", str(archive), "--directory", str(folder)],
            [sys.executable, "-m", "compileall", "-q", str(self._code)],  # at the first start, it would take 5 s
        ):
            subprocess.run(command, check=True)  # noqa: S603 - fixed commands

    def command(self, command: list[str]) -> list[str]:
        """Return a command of Python that runs this version instead of the installed one."""
        return ["/usr/bin/env", f"PYTHONPATH={self._code}", *command]

    def replay(self, journal: Path) -> str:
        """Replay a journal of this version; return what it says if the replay differs."""
        done = subprocess.run(  # noqa: S603 - a fixed command
            [sys.executable, "-P", "-m", "loadline", "replay", str(journal)],
            env=os.environ | {"PYTHONPATH": str(self._code)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return "" if done.returncode == 0 else done.stdout + done.stderr
