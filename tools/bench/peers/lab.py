"""Environment with NVIDIA's published wheels, apart from that of the project."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from loadline.errors import LoadlineError
from tools.bench.peers.lines import LineProcess

FOLDER: Final = Path.home() / ".cache/loadline-peers"
REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
_ROOT: Final = Path(__file__).resolve().parents[3]


class Lab:
    """Virtual environment in a folder.

    Args:
        folder: Folder of the environment; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python = folder / "venv/bin/python"
        self._installed = folder / "requirements.txt"

    @property
    def is_ready(self) -> bool:
        """True if the versions of this checkout are installed."""
        return self._installed.is_file() and self._installed.read_bytes() == REQUIREMENTS.read_bytes()

    def set_up(self) -> None:
        """Install the wheels with pip, which reports its progress on stderr.

        Raises:
            LoadlineError: Pip has failed.
        """
        venv.create(self._folder / "venv", with_pip=True, clear=True, symlinks=True)
        # The file lists dependencies too. With --no-deps the engines that ai-dynamo requires stay away, 20 GB.
        pip = [str(self._python), "-m", "pip", "install", "--no-deps", "--only-binary=:all:", "-r", str(REQUIREMENTS)]
        code = subprocess.run(pip, stdout=sys.stderr, check=False).returncode  # noqa: S603 - our own command
        if code:
            raise LoadlineError(f"pip ended with exit code {code}; its messages are above")
        self._installed.write_bytes(REQUIREMENTS.read_bytes())

    def simulator(self) -> LineProcess:
        """Start NVIDIA's simulator.

        Raises:
            LoadlineError: The environment is not set up; the text has the command.
        """
        if not self.is_ready:
            option = "" if self._folder == FOLDER else f" --lab {self._folder}"
            remedy = f"Set it up: python -m tools.bench.peers setup{option}"
            raise LoadlineError(f"NVIDIA's simulator is not set up in {self._folder}. {remedy}")
        # Several threads of OpenBLAS make a small regression slower, and take the core of the agent.
        settings = {"PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [str(self._python), "-m", "tools.bench.peers.simulator"]
        return LineProcess("NVIDIA's simulator", command, environment={**os.environ, **settings}, quiet=True)
