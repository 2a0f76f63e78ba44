"""File of the running workers, by which a restarted scaler finds them again.

It is replaced as a whole, so it is never half written, and locked, since two scalers would start every worker twice.
"""

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, Self

import msgspec
from msgspec import Struct

from loadline.adapters.process_identity import ProcessIdentity
from loadline.errors import ConfigError
from loadline.scalers.local.host import Allotment
from loadline.scalers.local.plan import Process
from loadline.toml.regular_file import open_regular, os_error_text

_BYTES_MAX: Final = 64 * 2**20
_DIGITS_MAX: Final = 18  # a longer number is none of ours, and Python refuses to read one of 5,000 digits


class SavedWorker(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker that was released, or is about to be."""

    model: str
    pool: str
    gpus: int
    process: Process
    """State of the worker; its times are of the monotonic clock, which all processes of one boot share."""
    allotment: Allotment
    identity: ProcessIdentity | None
    end_reason: str


class SavedState(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file."""

    scaler: str
    """Root and name of the scaler, since its workers are of no use to another one."""
    numbers: dict[str, int]
    """Next number of a worker, by name of the pool."""
    workers: tuple[SavedWorker, ...] = ()
    kind: Literal["loadline local scaler"] = "loadline local scaler"
    version: Literal[1] = 1


class StateFile:
    """The state file of one scaler, locked while it is open.

    Args:
        path: Path of the file.
        scaler: Root and name of the scaler.
    """

    def __init__(self, path: Path, scaler: str) -> None:
        self._path = path
        self._scaler = scaler
        self._written = b""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock the file.

        Raises:
            ConfigError: Another scaler uses it, or its folder cannot be written.
        """
        lock = self._path.with_name(f"{self._path.name}.lock")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._stack.enter_context(lock.open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._stack.close()
            problem = f"another scaler uses {self._path}"
            raise ConfigError("state_file", problem, "End it, or name another file.") from error
        except OSError as error:
            self._stack.close()
            problem = f"{lock} cannot be written: {error.strerror}"
            raise ConfigError("state_file", problem, "Name a file in a folder that the scaler can write.") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self) -> SavedState:
        """Return the saved state; that of a new scaler if there is no file.

        Raises:
            ConfigError: The file cannot be read, or was not written by this scaler. It is left as it is.
        """
        try:
            with open_regular(self._path) as file:
                saved = msgspec.json.decode(file.read(_BYTES_MAX), type=SavedState)
        except FileNotFoundError:
            return SavedState(self._scaler, {})
        except OSError as error:
            raise self._unusable(f"it cannot be read: {os_error_text(error)}") from error
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unusable(f"it cannot be read: {error}") from error
        if saved.scaler != self._scaler:
            raise self._unusable(f"it is the state of the scaler {saved.scaler}, and this is {self._scaler}")
        if problem := _contradiction(saved):
            raise self._unusable(problem)
        return saved

    def write(self, numbers: dict[str, int], workers: list[SavedWorker]) -> None:
        """Replace the file if its content has changed; it is on the disk when this returns.

        Raises:
            OSError: It cannot be written; the previous content is kept.
        """
        content = msgspec.json.encode(SavedState(self._scaler, numbers, tuple(workers)))
        if content == self._written:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        with open(new, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._written = content

    def _unusable(self, problem: str) -> ConfigError:
        remedy = "Workers that it lists may run and hold GPUs: restore it, or end them and remove the file."
        return ConfigError(f"state_file {self._path}", problem, remedy)


def _contradiction(saved: SavedState) -> str:
    """Return what no scaler writes, such as after an edit by hand; '' if there is nothing."""
    seen = set[str]()
    for one in saved.workers:
        name = one.process.worker
        if name in seen:
            return f"it lists {name} twice"
        seen.add(name)
        number = name.removeprefix(f"{one.pool}-")
        if number.isdecimal() and len(number) <= _DIGITS_MAX and saved.numbers.get(one.pool, 1) <= int(number):
            return f"the next number of {one.pool} is not above that of {name}, whose name another worker would get"
    return ""
