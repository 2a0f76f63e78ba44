"""Replays of journals while their agents write them, before the oldest segments are deleted."""

import asyncio
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT, create_subprocess_exec
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tools.process_chaos.fleet import ChaosFleet

_EVERY_S: Final = 120.0
"""Half of the 4 min in which an agent fills the 8 MiB of its journal."""


class JournalChecks:
    """Checks of a fleet's journals; what they find is in ``problems``.

    A journal is copied before it is replayed, since its agent deletes segments meanwhile.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.segments = 0
        """Segments that were replayed, each counted once."""
        self._replayed: dict[str, set[str]] = {}

    async def run(self, fleet: ChaosFleet) -> None:
        """Check the journals of all agents until cancelled."""
        number = 0
        while True:
            await asyncio.sleep(_EVERY_S)
            number += 1
            for name in fleet.clocks:
                copy = fleet.directory / "journal-copies" / f"{name}-{number}"
                if found := await self.check(fleet.directory / "journal" / name, copy):
                    fleet.write_line(found[0])
                    self.problems += found

    async def check(self, journal: Path, copy: Path) -> list[str]:
        """Check one journal; return what is wrong with it, and keep its copy then."""
        segments = await asyncio.to_thread(_copy, journal, copy)
        found = [*self._gaps(journal.name, segments), *await _differences(copy)]
        if not found:
            await asyncio.to_thread(shutil.rmtree, copy)
        return found

    def _gaps(self, name: str, segments: set[str]) -> Iterator[str]:
        """Yield a problem if segments between this check and the one before it were deleted."""
        before = self._replayed.get(name, set())
        if before and not before & segments:
            yield f"{name}: segments were deleted before they were replayed"
        self.segments += len(segments - before)
        self._replayed[name] = segments


def _copy(journal: Path, copy: Path) -> set[str]:
    """Copy the segments; return the names of those that were not deleted meanwhile."""
    copy.mkdir(parents=True)
    for segment in sorted(journal.glob("*.jsonl")):
        with suppress(FileNotFoundError):
            shutil.copyfile(segment, copy / segment.name)
    return {segment.name for segment in copy.iterdir()}


async def _differences(journal: Path) -> list[str]:
    """Replay a journal with the lowest priority; return what ``loadline replay`` says if it differs."""
    command = ("nice", "-n", "19", sys.executable, "-m", "loadline", "replay", str(journal))
    child = await create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    try:
        output, _ = await child.communicate()
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    return [f"{journal}: {output.decode(errors='replace').strip()}"] if child.returncode else []
