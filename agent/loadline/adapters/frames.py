"""What a child process and its parent say to each other: on stdin and stdout, each a length of four bytes and a frame.

The child begins with an answer without being asked: it is ready.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import BinaryIO, Final

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 4_194_304
"""A question of 4,096 points has 80 kB, an allocation of 1,024 models with 64 pools each 2 MB."""
READY: Final = b'"ready"'
# Below whoever must be quick: on a full machine the agent's loop comes first.
_NICENESS: Final = 10


def with_length(frame: bytes) -> bytes:
    """A frame, with its length before it."""
    return len(frame).to_bytes(LENGTH_BYTES) + frame


def answer_all(answer: Callable[[bytes], bytes], imports: list[str]) -> None:
    """Be such a child: answer until stdin ends.

    Args:
        answer: Takes a question and gives its answer.
        imports: Modules to import before anything is asked.
    """
    os.nice(_NICENESS)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
        for name in imports:
            import_module(name)
        _write_frame(answers, READY)
        while frame := _read_frame(sys.stdin.buffer):
            _write_frame(answers, answer(frame))


def _read_frame(questions: BinaryIO) -> bytes:
    return questions.read(int.from_bytes(questions.read(LENGTH_BYTES)))


def _write_frame(answers: BinaryIO, frame: bytes) -> None:
    answers.write(with_length(frame))
    answers.flush()
