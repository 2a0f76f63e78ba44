"""Wall clock of one process, which can be stepped: libfaketime (Debian: apt-get install faketime).

Its version 0.9.10 breaks Python's ``time.sleep``, which agents do not call.
"""

from pathlib import Path
from typing import Final

_LIBRARY: Final = "faketime/libfaketimeMT.so.1"


class WallClock:
    """Wall clock of a process and its children; clocks that count from the boot are those of the machine.

    Args:
        file: File with the step; written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._library = next(Path("/usr/lib").glob(f"*/{_LIBRARY}"), None)
        self.step(0)

    @property
    def is_steppable(self) -> bool:
        """False if libfaketime is not installed."""
        return self._library is not None

    def step(self, by_s: int) -> None:
        """Set the distance from the clock of the machine."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{by_s:+d}s\n", encoding="utf-8")
        draft.replace(self._file)

    def command(self, command: list[str]) -> list[str]:
        """Return a command under this clock."""
        if self._library is None:
            return command
        options = {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
        return ["/usr/bin/env", *(f"{name}={value}" for name, value in options.items()), *command]
