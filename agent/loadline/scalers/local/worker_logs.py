"""Log files of workers, of which the oldest are removed: a crash loop writes a new one every 30 s."""

import re
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from loadline.adapters import logs

KEPT_LOGS: Final = 20
"""Logs of ended workers that are kept for each pool, the newest ones: ten minutes of a crash loop."""
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
        except FileNotFoundError:
            return
        except OSError as error:
            _log.error("logs_not_removed", pool=pool, detail=str(error))
