"""Replays of journals while their agents write them."""

import asyncio
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT, create_subprocess_exec
from contextlib import suppress
from pathlib import Path
from typing import Final

from loadline.adapters.journal_segments import segments_in
from tools.process_chaos.fleet import ChaosFleet

_COPY_EVERY_S: Final = 30.0
"""An agent fills the 8 MiB of its journal in 4 min, and deletes its oldest segment then."""
_REPLAY_EVERY_S: Final = 120.0


class JournalChecks:
    """Checks of a fleet's journals; what they find is in ``problems``.

    Segments are copied before their agent deletes them, and replayed when there is time: a busy machine takes minutes.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.segments = 0
        """Whole segments that were replayed."""

    async def run(self, fleet: ChaosFleet) -> None:
        """Copy and replay the journals of all agents until cancelled."""
        journals = {name: fleet.directory / "journal-copies" / name for name in fleet.clocks}
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy_all({fleet.directory / "journal" / name: copy for name, copy in journals.items()}))
            group.create_task(self._replay_all(fleet, journals))

    async def replay(self, copy: Path) -> list[str]:
        """Replay a copy, with the lowest priority; return what ``loadline replay`` says if it differs.

        A copy without a difference loses all segments but the newest, with which the next replay begins.
        """
        segments = segments_in(copy)
        if not segments:
            return []
        command = ("nice", "-n", "19", sys.executable, "-m", "loadline", "replay", str(copy))
        child = await create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
        try:
            output, _ = await child.communicate()
        except asyncio.CancelledError:
            child.kill()
            await child.wait()
            raise
        if child.returncode:
            return [f"{copy}: {output.decode(errors='replace').strip()}"]
        for segment in segments[:-1]:
            segment.unlink()
        self.segments += len(segments) - 1
        return []

    async def _replay_all(self, fleet: ChaosFleet, journals: dict[str, Path]) -> None:
        """Replay the copies in turn; a journal with a difference no more, so that its copy stays."""
        while journals:
            await asyncio.sleep(_REPLAY_EVERY_S)
            for name, copy in list(journals.items()):
                if found := await self.replay(copy):
                    fleet.write_line(found[0])
                    self.problems += found
                    del journals[name]


async def _copy_all(copies: dict[Path, Path]) -> None:
    while True:
        await asyncio.sleep(_COPY_EVERY_S)
        for journal, copy in copies.items():
            await asyncio.to_thread(copy_segments, journal, copy)


def copy_segments(journal: Path, copy: Path) -> None:
    """Copy the segments that are new or have grown, and none older than the oldest copy: these were replayed.

    An agent that is still starting has no folder yet. One on a full disk removes the segment that it cannot begin.
    """
    copy.mkdir(parents=True, exist_ok=True)
    oldest = min((segment.name for segment in segments_in(copy)), default="")
    for segment in segments_in(journal) if journal.exists() else ():
        copied = copy / segment.name
        with suppress(FileNotFoundError):  # its agent has deleted it
            size = segment.stat().st_size
            if size and segment.name >= oldest and not (copied.exists() and copied.stat().st_size == size):
                part = shutil.copyfile(segment, copied.with_suffix(".part"))
                part.replace(copied)  # at once: a replay may be reading it
