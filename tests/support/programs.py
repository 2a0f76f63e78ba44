"""Programs of the system that a few tests use, and that .ci/run unpacks into .venv."""

import os
import shutil
import sys
from pathlib import Path


def find_program(name: str) -> str | None:
    """Return the path of a program beside Python or on the PATH; None: it is not installed."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
