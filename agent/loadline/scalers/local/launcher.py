"""Port of the local scaler to what runs its processes, and the implementation whose workers are its own children."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from loadline.adapters.child_process import GatedChild
from loadline.adapters.process_identity import ProcessIdentity
from loadline.adapters.watched_process import WatchedProcess

OnExit = Callable[[int | None], None]
"""Function that is called once with the exit code; None: only the parent of the process would know."""


class Launch(Struct, frozen=True):
    """A command to run."""

    worker: str
    command: Sequence[str]
    env: Mapping[str, str]
    """Variables to add to the environment."""
    log_path: Path | None


class WorkerProcess(Protocol):
    """Process of a worker."""

    @property
    def identity(self) -> ProcessIdentity | None:
        """The process; None: it is found again by the worker's name."""
        ...

    async def release(self) -> None:
        """Let it run its command."""
        ...

    def send(self, kind: Literal["terminate", "kill"]) -> None:
        """Send SIGTERM to the process, or SIGKILL to it, its descendants and its session."""
        ...


class Launcher(Protocol):
    """Runs the processes of workers.

    A process is created, recorded in the state file and then released. So what runs is recorded, at every moment.
    """

    async def create(self, launch: Launch, on_exit: OnExit) -> WorkerProcess:
        """Create a process that does not run its command yet; if the scaler ends before the release, it never will.

        Raises:
            OSError: It cannot be created.
        """
        ...

    async def adopt(self, worker: str, identity: ProcessIdentity | None, on_exit: OnExit) -> WorkerProcess | None:
        """Return the running process of a worker of the state file; None: it has ended, and what it left was killed."""
        ...

    async def discard_unreleased(self) -> None:
        """Remove what an earlier scaler has created and not released."""
        ...


class _OwnProcess(GatedChild):
    """A worker's process that this scaler has started."""

    async def release(self) -> None:
        self.open_gate()


class _AdoptedProcess(WatchedProcess):
    """A worker's process that an earlier scaler has started."""

    async def release(self) -> None:
        """Do nothing: it was released, or has ended."""


class ChildLauncher:
    """Runs workers as children of this process.

    Args:
        outlive: True if they outlive this process.
    """

    def __init__(self, *, outlive: bool) -> None:
        self._outlive = outlive

    async def create(self, launch: Launch, on_exit: OnExit) -> WorkerProcess:
        """Create a child behind a gate."""
        program = launch.command[0]
        if shutil.which(program, path=launch.env.get("PATH")) is None:
            raise FileNotFoundError(f"{program} is no program of this host")
        return _OwnProcess(launch.command, launch.env, launch.log_path, on_exit, outlives=self._outlive)

    async def adopt(self, worker: str, identity: ProcessIdentity | None, on_exit: OnExit) -> WorkerProcess | None:  # noqa: ARG002 - for launchers that find a process by name
        """Return the process if it still runs."""
        try:
            return _AdoptedProcess(identity, lambda: on_exit(None)) if identity else None
        except ProcessLookupError:
            return None

    async def discard_unreleased(self) -> None:
        """Do nothing: unreleased children have ended with their parent."""
