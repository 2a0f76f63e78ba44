"""Reload of the configuration, on request and when its file changes."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw, Struct

from loadline.adapters.daemon_thread import call_in_daemon
from loadline.adapters.logs import bounded
from loadline.config import Config
from loadline.config.changes import FIXED, KeyChange, keep_fixed, key_changes
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import AnyEvent, SettingsChanged, SettingsRefused
from loadline.runtime.settings import settings

_CHANGES_LOGGED_MAX: Final = 100
_log = bounded("agent")

Stamp = tuple[int, int, int, int]
"""Device, inode, modification time in ns, and size of a file: a difference means another file or content."""


class Source(Struct, frozen=True):
    """Source of a configuration: a file and the function that reads it."""

    path: Path
    read: Callable[[], tuple[Config, list[str]]]
    """Reads and checks the file: returns the configuration and warnings, or raises. Called in a thread."""
    stamp: Stamp | None
    """Stamp of the file before it was read."""

    @classmethod
    def at(cls, path: Path, read: Callable[[], tuple[Config, list[str]]]) -> "Source":
        """Return the source for a file that is about to be read for the first time."""
        return cls(path, read, _stamp(path))


class Reloader:
    """Reloads a configuration, and sends the core its new settings or the reason why it cannot be used.

    With a file that cannot be used the agent keeps the settings in force; with an unchanged configuration it sends the
    core no event. Changes are logged key by key.

    Args:
        source: Source of the configuration.
        config: Configuration with which the agent started.
        current: Settings of the core for that configuration.
        put: Receives the events.
        check: Raises if the agent cannot go over to settings without a restart.
    """

    def __init__(
        self,
        source: Source,
        config: Config,
        current: Settings,
        put: Callable[[AnyEvent], None],
        check: Callable[[Settings], None],
    ) -> None:
        self._source = source
        self._config = config
        self._put = put
        self._check = check
        self._requested = asyncio.Event()
        self._current = current
        self._applied: tuple[str, list[str]] | None = current.digest, []
        """Digest of the settings in force, and keys that need a restart; None while a problem is reported."""

    def request(self) -> None:
        """Request a reload as soon as possible."""
        self._requested.set()

    async def run(self) -> None:
        """Check the file every ``reload_interval_ms`` and reload it on change or request, until cancelled."""
        interval_s = self._config.agent.reload_interval_ms / 1_000 or None
        read_at = seen = self._source.stamp
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._requested.wait()
            requested = self._requested.is_set()
            self._requested.clear()
            before, seen = seen, await call_in_daemon(lambda: _stamp(self._source.path))
            # The stamp of a file that is being written differs at every check; a missing file is expected to come back.
            if requested or (seen is not None and seen == before and seen != read_at):
                read_at = seen
                event = await call_in_daemon(self._reload)
                if event is not None:
                    self._put(event)

    def _reload(self) -> AnyEvent | None:
        """Reload in a thread, as files may be large or slow; None if nothing changed."""
        try:
            new, warnings = self._source.read()
            config = keep_fixed(self._config, new)
            loaded = settings(config)
            self._check(loaded)
        except Exception as error:  # noqa: BLE001 - no problem of a file may stop the agent
            _log.error(
                "config_refused",
                path=str(self._source.path),
                detail=str(error),
                remedy="The configuration in force is kept.",
            )
            self._applied = None
            return SettingsRefused(str(error))
        changes = key_changes(self._config, new)
        fixed = [change.key for change in changes if change.key.partition(".")[0] in FIXED]
        if self._applied == (loaded.digest, fixed):
            _log.debug("config_unchanged", digest=loaded.digest)
            return None
        self._applied = loaded.digest, fixed
        self._log_changes(warnings, [change for change in changes if change.key not in fixed], fixed, loaded)
        self._config, self._current = config, loaded
        return SettingsChanged(Raw(msgspec.json.encode(loaded)), fixed)

    def _log_changes(self, warnings: list[str], changes: list[KeyChange], fixed: list[str], loaded: Settings) -> None:
        for warning in warnings:
            _log.warning("config_warning", warning=warning)
        if fixed:
            _log.warning("not_reloaded", keys=fixed, remedy="Restart the agent to apply them.")
        lines = [str(change) for change in changes[:_CHANGES_LOGGED_MAX]]
        if len(changes) > len(lines):
            lines.append(f"and {len(changes) - len(lines)} more")
        if (self._current.profiles, self._current.histories) != (loaded.profiles, loaded.histories):
            lines.append("profiles or traces: reloaded")
        _log.info("config_reloaded", digest=loaded.digest, changes=lines)


def _stamp(path: Path) -> Stamp | None:
    """Return the stamp of a file, following links; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
