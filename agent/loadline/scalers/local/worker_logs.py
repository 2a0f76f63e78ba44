"""Log files of workers, of which the oldest are removed: a crash loop writes a new one every 30 s.

That of a running worker is bounded, since an engine writes the same warning for each request.
"""

import os
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from io import FileIO
from pathlib import Path
from typing import Final

from loadline.adapters import logs

KEPT_LOGS: Final = 20
"""Logs of ended workers that are kept for each pool, the newest ones: ten minutes of a crash loop."""
LOG_BYTES_MAX: Final = 16 * 2**20
"""Size above which the log of a running worker is restarted: some 100,000 lines."""
_CHUNK_BYTES: Final = 2**20
_log = logs.bounded("local_scaler")


class WorkerLogs:
    """Folder with one log file for each worker.

    Args:
        directory: The folder.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path_of(self, worker: str) -> Path:
        """Return the path of a worker's log."""
        return self._directory / f"{worker}.log"

    def prune(self, pool: str, running: AbstractSet[str]) -> None:
        """Remove the oldest logs of a pool's ended workers. A failure is logged and does not stop the scaler.

        Args:
            pool: Name of the pool.
            running: Workers whose logs are kept.
        """
        named = re.compile(rf"{re.escape(pool)}-\d+\.log")
        try:
            files = [file for file in self._directory.iterdir() if named.fullmatch(file.name)]
            # By time, not by number: without a state file the numbers of a new scaler start at 1 again.
            ended = sorted((file for file in files if file.stem not in running), key=lambda file: file.stat().st_mtime)
            for file in ended[:-KEPT_LOGS]:
                file.unlink()
                _former(file).unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.error("logs_not_removed", pool=pool, detail=str(error))

    def bound(self, workers: Iterable[str]) -> None:
        """Let the logs of running workers that have grown above 16 MiB begin anew, and keep their end as ``.log.1``.

        Call it a few times a second. A failure is logged and does not stop the scaler.
        """
        for worker in workers:
            path = self.path_of(worker)
            try:
                if path.stat().st_size > LOG_BYTES_MAX:
                    _begin_anew(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.error("log_not_bounded", worker=worker, detail=str(error))


def _former(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _begin_anew(path: Path) -> None:
    """Copy the end of a log and empty it: its worker keeps the file open, and appends to it.

    What is written in the microseconds between the last read and the truncation is lost.
    """
    former = _former(path)
    with path.open("r+b", buffering=0) as file:
        try:
            _copy_end(file, former)
        except OSError:
            former.unlink(missing_ok=True)  # a part of a copy would take the rest of a disk that is nearly full
            raise
        file.truncate(0)


def _copy_end(file: FileIO, former: Path) -> None:
    left = 2 * LOG_BYTES_MAX  # a worker that writes faster than this copies has no end
    file.seek(-LOG_BYTES_MAX, os.SEEK_END)
    with former.open("wb") as copy:
        while left > 0 and (chunk := file.read(_CHUNK_BYTES)):
            copy.write(chunk)
            copy.flush()  # on a full disk nothing is removed
            left -= len(chunk)
