"""Folder for files that targets read, which the end of the process removes."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def scratch_folder() -> Path:
    """Return the folder of this process."""
    folder = tempfile.mkdtemp(prefix="loadline-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
