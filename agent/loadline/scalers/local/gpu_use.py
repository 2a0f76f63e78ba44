"""GPUs that processes of others use, as nvidia-smi shows them."""

import time
from collections.abc import Mapping
from typing import Final

from loadline.adapters.logs import bounded
from loadline.scalers.command import CommandFailed, run_command

_GPUS: Final = ("--query-gpu=index,uuid", "--format=csv,noheader")
_PROCESSES: Final = ("--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader")
_TIMEOUT_S: Final = 5.0
# A worker that waits for a GPU is planned four times a second; nvidia-smi takes up to a second of a processor.
_INTERVAL_S: Final = 5.0
_log = bounded("local_scaler")


class GpuUse:
    """Compute processes by GPU. Those of workers are among them; a GPU that no worker has is used by others."""

    def __init__(self) -> None:
        self.used: Mapping[str, str] = {}
        """A sentence for each GPU with processes, by index and by UUID; empty where nvidia-smi does not answer."""
        self._next_s = 0.0

    async def refresh(self) -> None:
        """Ask nvidia-smi again, at most every 5 s."""
        if time.monotonic() < self._next_s:
            return
        try:
            gpus, processes = await _ask(_GPUS), await _ask(_PROCESSES)
        except CommandFailed as failure:
            _log.warning("gpu_use_unknown", detail=f"nvidia-smi: {failure}")
            self.used = {}
        else:
            self.used = _used(gpus, processes)
        self._next_s = time.monotonic() + _INTERVAL_S


def _used(gpus: str, processes: str) -> dict[str, str]:
    indices = {uuid: index for index, uuid in _rows(gpus, 2)}
    used = {}
    for uuid, pid, program in _rows(processes, 3):
        index = indices.get(uuid, uuid)
        used[uuid] = used[index] = f"GPU {index} is used by {program} (process {pid})"
    return used


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [[word.strip() for word in line.split(",", columns - 1)] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


async def _ask(arguments: tuple[str, ...]) -> str:
    """Return the output of nvidia-smi.

    Raises:
        CommandFailed: It is not there, fails, or does not answer in time.
    """
    output = await run_command(("nvidia-smi", *arguments), b"", _TIMEOUT_S)
    return output.decode("utf-8", "replace")
