"""The child process that fits: questions on stdin, answers on stdout, each a length of four bytes and so much JSON.

It begins with an answer without being asked: the packages are imported.
"""

import os
import sys
from importlib import import_module
from typing import BinaryIO, Final

import msgspec

from loadline.core.forecasts import Question
from loadline.forecast import forecast

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 262_144  # a question of 4,096 points has 80 kB
READY: Final = b'"ready"'
# Below whoever must be quick: on a full machine the agent's loop comes first.
_NICENESS: Final = 10


def framed(frame: bytes) -> bytes:
    """A frame, with its length before it."""
    return len(frame).to_bytes(LENGTH_BYTES) + frame


def main(imports: list[str]) -> None:
    """Answer until stdin ends.

    Args:
        imports: Modules to import before anything is asked.
    """
    os.nice(_NICENESS)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
        for name in imports:
            import_module(name)
        _say(answers, READY)
        decoder = msgspec.json.Decoder(Question)
        while frame := _heard(sys.stdin.buffer):
            _say(answers, msgspec.json.encode(forecast(decoder.decode(frame))))


def _heard(questions: BinaryIO) -> bytes:
    return questions.read(int.from_bytes(questions.read(LENGTH_BYTES)))


def _say(answers: BinaryIO, frame: bytes) -> None:
    answers.write(framed(frame))
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
