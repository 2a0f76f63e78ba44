"""The configuration is read again: when somebody asks for it, and when its file is another one than before."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
from msgspec import Raw, Struct

from loadline.config import Config
from loadline.config.changes import FIXED, KeyChange, keep_fixed, key_changes
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import AnyEvent, SettingsChanged, SettingsRefused
from loadline.runtime.settings import settings

_log = structlog.get_logger("loadline")

Stamp = tuple[int, int, int, int]
"""Device, inode, time of the last change in ns, and size: another one is another file, or another content."""


class Source(Struct, frozen=True):
    """Where a configuration comes from."""

    path: Path
    read: Callable[[], tuple[Config, list[str]]]
    """Read and judge it: gives warnings too, and raises what is wrong with it. Called in a thread."""
    stamp: Stamp | None
    """Of the file, before it was read."""

    @classmethod
    def at(cls, path: Path, read: Callable[[], tuple[Config, list[str]]]) -> "Source":
        """A file that is about to be read for the first time."""
        return cls(path, read, _stamp(path))


class Reloader:
    """Reads a configuration again, and tells the core: of new settings, or that there are none that can be used.

    Where the file cannot be used, or is half written, the agent goes on as before, and where it says the same as before
    the core is told nothing. What changed is logged key by key.

    Args:
        source: Where it comes from.
        config: What the agent started with.
        told: What the core was told of that.
        put: Takes the events.
    """

    def __init__(self, source: Source, config: Config, told: Settings, put: Callable[[AnyEvent], None]) -> None:
        self._source = source
        self._config = config
        self._put = put
        self._asked = asyncio.Event()
        self._told = told
        self._obeyed: tuple[str, list[str]] | None = told.digest, []
        """Digest of what the core obeys, and the keys that wait for a restart; None while a problem is told of."""

    def ask(self) -> None:
        """Have it read as soon as possible."""
        self._asked.set()

    async def run(self) -> None:
        """Look at the file every ``reload_interval_ms``, and read it where that is called for; until cancelled."""
        interval_s = self._config.agent.reload_interval_ms / 1_000 or None
        read_at = seen = self._source.stamp
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), interval_s)
            asked = self._asked.is_set()
            self._asked.clear()
            before, seen = seen, await asyncio.to_thread(_stamp, self._source.path)
            # A file that is still being written has another stamp at every look; one that is away will come back.
            if asked or (seen is not None and seen == before and seen != read_at):
                read_at = seen
                event = await asyncio.to_thread(self._read)
                if event is not None:
                    self._put(event)

    def _read(self) -> AnyEvent | None:
        """In a thread: files may be large, or slow. None: it says what it said before."""
        try:
            new, warnings = self._source.read()
            config = keep_fixed(self._config, new)
            told = settings(config)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a file is no reason to stop
            _log.error("config_refused", path=str(self._source.path), error=str(error), remedy="The old one is kept.")
            self._obeyed = None
            return SettingsRefused(str(error))
        said = key_changes(self._config, new)
        kept = [change.key for change in said if change.key.partition(".")[0] in FIXED]
        if self._obeyed == (told.digest, kept):
            _log.debug("config_unchanged", digest=told.digest)
            return None
        self._obeyed = told.digest, kept
        self._say(warnings, [change for change in said if change.key not in kept], kept, told)
        self._config, self._told = config, told
        return SettingsChanged(Raw(msgspec.json.encode(told)), kept)

    def _say(self, warnings: list[str], said: list[KeyChange], kept: list[str], told: Settings) -> None:
        for warning in warnings:
            _log.warning("config_warning", warning=warning)
        if kept:
            _log.warning("not_reloaded", keys=kept, remedy="Restart the agent to have them obeyed.")
        lines = [str(change) for change in said]
        if (self._told.profiles, self._told.histories) != (told.profiles, told.histories):
            lines.append("profiles or traces: read anew")
        _log.info("config_reloaded", digest=told.digest, changes=lines)


def _stamp(path: Path) -> Stamp | None:
    """What a file is by what it says of itself; links are followed. None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
