"""Protocol between a child process and its parent: length-prefixed frames on stdin and stdout.

The child first sends ``READY``, without a query.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import BinaryIO, Final

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 4_194_304
"""Maximum size of a frame: a query of 4,096 points has 80 kB, an allocation of 1,024 models with 64 pools each 2 MB."""
READY: Final = b'"ready"'
# On a busy machine the agent's loop has priority over its children.
_NICENESS: Final = 10


def with_length(frame: bytes) -> bytes:
    """Return a frame with its length prepended."""
    return len(frame).to_bytes(LENGTH_BYTES) + frame


def answer_all(answer: Callable[[bytes], bytes], imports: Sequence[str] = ()) -> None:
    """Run as the child: answer until stdin ends.

    Args:
        answer: Maps a query to its answer.
        imports: Modules to import before the first query.
    """
    with contextlib.suppress(PermissionError):  # a system-call filter, such as that of our systemd unit, may refuse it
        os.nice(_NICENESS)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output that a library prints must not mix with answers
        for name in imports:
            import_module(name)
        _write_frame(answers, READY)
        while frame := _read_frame(sys.stdin.buffer):
            _write_frame(answers, answer(frame))


def _read_frame(requests: BinaryIO) -> bytes:
    return requests.read(int.from_bytes(requests.read(LENGTH_BYTES)))


def _write_frame(answers: BinaryIO, frame: bytes) -> None:
    answers.write(with_length(frame))
    answers.flush()
