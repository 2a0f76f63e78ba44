"""Free space of a disk, for errors that a lack of it may have caused."""

import shutil
from pathlib import Path
from typing import Final

_NEEDED_MIB: Final = 256
"""etcd reserves 64 MiB for each of two files at its start; logs and journals come on top."""


def lack_of_space(directory: Path) -> str:
    """Return a sentence to append if the disk of an existing folder has little space left, else an empty text."""
    free_mib = shutil.disk_usage(directory).free // 2**20
    if free_mib >= _NEEDED_MIB:
        return ""
    return f". Its disk has {free_mib} MiB left, and {_NEEDED_MIB} are needed: name another folder with --directory"
