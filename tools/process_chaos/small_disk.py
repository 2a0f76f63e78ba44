"""Disk of a few MiB, which can be full: a tmpfs. Mounting it takes the rights of root."""

import asyncio
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_REFILL_S: Final = 0.1


class SmallDisk:
    """A small disk on a folder; without the right to mount, the folder stays on the disk of the machine.

    Args:
        folder: The folder; created.
        mib: Size of the disk.
    """

    def __init__(self, folder: Path, mib: int) -> None:
        self._folder = folder
        self._filler = folder / "filler"
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)]
        self.mounted = _runs(command)

    async def fill(self, for_s: float) -> None:
        """Leave no byte free, also if files are deleted meanwhile."""
        until_s = time.monotonic() + for_s
        try:
            with self._filler.open("wb", buffering=0) as filler:
                while time.monotonic() < until_s:
                    with suppress(OSError):  # it is full
                        while True:
                            filler.write(bytes(os.statvfs(self._folder).f_bsize))
                    await asyncio.sleep(_REFILL_S)
        finally:
            self._filler.unlink()

    def unmount(self) -> None:
        """Move the files to the disk of the machine."""
        if self.mounted:
            copy = self._folder.with_name(f"{self._folder.name}-copy")
            shutil.copytree(self._folder, copy)
            _runs(["umount", "--lazy", str(self._folder)])
            self._folder.rmdir()
            copy.rename(self._folder)
            self.mounted = False


def _runs(command: list[str]) -> bool:
    program = shutil.which(command[0])
    if program is None:
        return False
    return subprocess.run([program, *command[1:]], check=False, capture_output=True).returncode == 0  # noqa: S603
