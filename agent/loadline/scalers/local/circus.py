"""Local scaler whose workers run in circusd, each in a watcher of its own.

    loadline scaler circus --config circus.toml

circusd starts the processes; all else is done as for workers that the scaler starts itself.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from loadline.adapters import logs
from loadline.adapters.circus_client import CircusClient, CircusRefused, CircusUnavailable
from loadline.adapters.process_identity import ProcessIdentity, identify
from loadline.adapters.watched_process import WatchedProcess
from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.scalers.config_file import read_as
from loadline.scalers.local.actions import connect
from loadline.scalers.local.config import LocalKnobs, checked, relative_to
from loadline.scalers.local.launcher import Launch, OnExit, WorkerProcess
from loadline.scalers.local.serve import run_scaler

__all__ = ["CircusKnobs", "CircusLauncher", "connect", "read", "serve"]

# The scaler decides when a worker is killed; circusd, which would do so by itself, waits for a day.
_GRACEFUL_TIMEOUT_S: Final = 86_400
_UNAVAILABLE_WAIT_S: Final = 1.0
_CLOSE_S: Final = 10.0
# Variable by which the scaler recognises its watchers.
_MARK: Final = "LOADLINE_SCALER"
_LOGGED: Final = ("-c", 'exec "$@" >>"$0" 2>&1')
_log = logs.bounded("circus_scaler")


class CircusKnobs(LocalKnobs, frozen=True, forbid_unknown_fields=True):
    """Configuration file of the circus scaler: that of the local one, and circusd."""

    name: Annotated[Name, Meta(description="Name in the answers to decisions.")] = "circus"
    circus: Annotated[str, Meta(description="Endpoint of circusd.")] = "tcp://127.0.0.1:5555"


class _WatcherProcess:
    """Process of a worker in circusd."""

    def __init__(self, launcher: "CircusLauncher", worker: str, on_exit: OnExit, *, released: bool) -> None:
        self._launcher = launcher
        self._worker = worker
        self._on_exit = on_exit
        self._process: WatchedProcess | None = None
        self._released = released
        self._requested: Literal["none", "terminate", "kill"] = "none"

    @property
    def identity(self) -> ProcessIdentity | None:
        return self._process.identity if self._process else None

    async def release(self) -> None:
        """Start the watcher, and watch the process that circusd has started."""
        self._released = True
        try:
            await self._launcher.start(self._worker)
        except (CircusRefused, CircusUnavailable) as error:
            _log.error("watcher_not_started", worker=self._worker, detail=str(error))
        await self.find()

    async def find(self) -> None:
        """Watch the process that circusd runs; without one the worker has ended."""
        try:
            pid = await self._launcher.pid_of(self._worker)
            identity = identify(pid) if pid else None
            # circusd lists no process that it has waited for, so the one that was identified is still the worker's.
            if identity is not None and await self._launcher.pid_of(self._worker) == pid:
                self.watch(identity)
            else:
                self._ended()
        except ProcessLookupError:
            self._ended()
        except CircusUnavailable as error:
            _log.warning("worker_unknown", worker=self._worker, detail=str(error))
            self._launcher.later(self.find_later())

    def watch(self, identity: ProcessIdentity) -> None:
        """Watch a process, and send it the strongest signal that was requested before it was found.

        Raises:
            ProcessLookupError: It has ended.
        """
        self._process = WatchedProcess(identity, self._ended)
        if self._requested != "none":
            self._process.send(self._requested)

    def send(self, kind: Literal["terminate", "kill"]) -> None:
        """Send a signal, as soon as the process is found."""
        if self._process is not None:
            self._process.send(kind)
        elif not self._released:
            self._ended()
        elif self._requested != "kill":
            self._requested = kind

    async def find_later(self) -> None:
        """Look for the process again after a wait."""
        await asyncio.sleep(_UNAVAILABLE_WAIT_S)
        await self.find()

    def _ended(self) -> None:
        self._launcher.remove_later(self._worker)
        self._on_exit(None)


class CircusLauncher:
    """Runs workers in circusd, one watcher for each.

    Args:
        client: Connection to circusd.
        scaler: Root and name of the scaler, which mark its watchers.
    """

    def __init__(self, client: CircusClient, scaler: str) -> None:
        self._client = client
        self._scaler = scaler
        self._tasks: set[asyncio.Task[None]] = set()
        self._discarded = False

    async def create(self, launch: Launch, on_exit: OnExit) -> WorkerProcess:
        """Add a watcher that is not started."""
        program, *arguments = launch.command
        if launch.log_path is not None:
            launch.log_path.parent.mkdir(parents=True, exist_ok=True)
            program, arguments = "sh", [*_LOGGED, str(launch.log_path.absolute()), *launch.command]
        options = {
            "singleton": True,
            "respawn": False,
            "max_retry": 1,
            "graceful_timeout": _GRACEFUL_TIMEOUT_S,
            "copy_env": True,
            "env": {**launch.env, _MARK: self._scaler},
        }
        try:
            if not self._discarded:
                await self._discard()
            await self._client.command("add", name=launch.worker, cmd=program, args=arguments, options=options)
        except (CircusRefused, CircusUnavailable) as error:
            raise OSError(str(error)) from error
        return _WatcherProcess(self, launch.worker, on_exit, released=False)

    async def adopt(self, worker: str, identity: ProcessIdentity | None, on_exit: OnExit) -> WorkerProcess | None:
        """Return the process if it still runs, also if circusd does not, or if only circusd could tell."""
        process = _WatcherProcess(self, worker, on_exit, released=True)
        try:
            if identity is not None:
                process.watch(identity)
            elif await self.pid_of(worker) is None:
                return None
            else:
                # It may end until it is found, and then calls ``on_exit`` as any worker does.
                self.later(process.find())
        except ProcessLookupError:
            self.remove_later(worker)
            return None
        except CircusUnavailable:
            self.later(process.find_later())
        return process

    async def discard_unreleased(self) -> None:
        """Remove the stopped watchers of this scaler, at the latest before the first new one is added."""
        try:
            await self._discard()
        except (CircusRefused, CircusUnavailable) as error:
            _log.warning("watchers_not_discarded", detail=str(error), remedy="Start circusd, or name its endpoint.")

    async def _discard(self) -> None:
        # Those of workers that have ended are among them.
        statuses = (await self._client.command("status")).get("statuses", {})
        for name in (name for name, status in statuses.items() if status == "stopped"):
            options = (await self._client.command("get", name=name, keys=["env"])).get("options", {})
            if (options.get("env") or {}).get(_MARK) == self._scaler:
                await self._client.command("rm", name=name)
        self._discarded = True

    async def start(self, worker: str) -> None:
        """Start the watcher of a worker, and wait until circusd has started its process."""
        await self._client.command("start", name=worker, waiting=True)

    async def pid_of(self, worker: str) -> int | None:
        """Return the id of the process of a worker; None: it has none."""
        try:
            reply = await self._client.command("list", name=worker)
        except CircusRefused:
            return None
        return next(iter(reply.get("pids", ())), None)

    def remove_later(self, worker: str) -> None:
        """Remove the watcher of a worker that has ended."""
        self.later(self._remove(worker))

    def later(self, work: Coroutine[None, None, None]) -> None:
        """Run something in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait at most 10 s for what runs in the background; stopped watchers that are left go at the next start."""
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=_CLOSE_S)
            for task in unfinished:
                task.cancel()

    async def _remove(self, worker: str) -> None:
        try:
            await self._client.command("rm", name=worker)
        except (CircusRefused, CircusUnavailable) as error:
            _log.warning("watcher_not_removed", worker=worker, detail=str(error))


def read(path: Path, *, sidecar: bool = False) -> CircusKnobs:
    """Read a TOML file.

    Args:
        path: Path of the file.
        sidecar: True if the workers of every pool get a sidecar.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """

    def finish(knobs: CircusKnobs) -> CircusKnobs:
        if not knobs.state_file:
            raise ConfigError("state_file", "workers in circusd outlive the scaler", "Name a file that lists them.")
        return checked(relative_to(path, knobs), sidecar=sidecar)

    return read_as(CircusKnobs, path, finish)


async def serve(path: Path, only: Sequence[str], *, sidecar: bool = False) -> None:
    """Run until SIGTERM or SIGINT, for the models of a configuration or some of them.

    Raises:
        ConfigError: The configuration is invalid, or the state file cannot be used.
    """
    knobs = read(path, sidecar=sidecar)
    client = CircusClient(knobs.circus)
    launcher = CircusLauncher(client, f"{knobs.root}/{knobs.name}")
    try:
        await run_scaler(knobs, only, launcher)
        await launcher.close()
    finally:
        client.close()
