"""Wall clock of one agent, which can be stepped.

It replaces ``time.time`` and ``time.time_ns`` in the agent, which reads the wall clock by them alone, except for the
names of journal segments. libfaketime 0.9.10 would step the whole process, but makes ``time.sleep`` of Python fail.
"""

import runpy
import sys
import time
from pathlib import Path


class WallClock:
    """Wall clock of an agent; clocks that count from the boot are those of the machine.

    Args:
        file: File with the step in s; written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    def step(self, by_s: int) -> None:
        """Set the distance from the clock of the machine."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(by_s), encoding="utf-8")
        draft.replace(self._file)

    def command(self, *arguments: str) -> list[str]:
        """Return the command of loadline under this clock."""
        return [sys.executable, "-P", __file__, str(self._file), *arguments]


def _step(file: Path) -> None:
    """Add the step in a file to the wall clock of this process."""
    machine_ns = time.time_ns

    def stepped_ns() -> int:
        return machine_ns() + int(file.read_text(encoding="utf-8")) * 1_000_000_000

    time.time_ns = stepped_ns
    time.time = lambda: stepped_ns() / 1e9


if __name__ == "__main__":
    _step(Path(sys.argv[1]))
    sys.argv[:2] = ["loadline"]
    runpy.run_module("loadline", run_name="__main__", alter_sys=False)
