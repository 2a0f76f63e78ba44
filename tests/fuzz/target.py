"""Targets of the fuzz, and what escapes them: an undeclared exception, too much CPU time, or memory that grows."""

import gc
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog
from msgspec import Struct

SIZE_UNIT_BYTES: Final = 16_384
DECODER_MS: Final = 1.0
"""CPU time per 16 KiB of a decoder of messages, which runs on the event loop."""
READER_MS: Final = 250.0
"""CPU time per 16 KiB of a reader of files of operators; more is a hang."""
_REPEATS: Final = 5
_GROWTH_BLOCKS_MAX: Final = 200
"""Python objects that may remain of a whole corpus: caches of the standard library change by some."""


class Escape(Exception):
    """Input that a target lets escape."""


class Target(Struct, frozen=True):
    """A part that reads input from outside.

    Attributes:
        name: Its name on the command line and in the corpus.
        run: Reads one input with a fresh reader.
        seeds: Valid inputs; mutants of JSON are of its grammar.
        declared: Exceptions by which it refuses input.
        ms_max: CPU time per 16 KiB.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Sequence[bytes]
    declared: tuple[type[Exception], ...] = ()
    ms_max: float = DECODER_MS

    def examine(self, data: bytes, patience: float = 1.0) -> None:
        """Read one input.

        Args:
            data: The input.
            patience: Factor of the allowed time, for code that measures its coverage.

        Raises:
            Escape: It is one.
        """
        took_ms = self._timed(data)
        allowed_ms = patience * self.ms_max * math.ceil(max(len(data), 1) / SIZE_UNIT_BYTES)
        for _ in range(_REPEATS):  # another process, or a collection of garbage, may have taken the time
            if took_ms <= allowed_ms:
                return
            took_ms = min(took_ms, self._timed(data))
        if took_ms > allowed_ms:
            raise Escape(f"{len(data)} bytes took {took_ms:.1f} ms, {allowed_ms:g} are allowed")

    def _timed(self, data: bytes) -> float:
        began_ns = time.thread_time_ns()
        try:
            self.run(data)
        except self.declared:
            pass
        except Exception as error:
            raise Escape(f"{type(error).__name__}: {error}"[:500]) from error
        return (time.thread_time_ns() - began_ns) / 1e6


@contextmanager
def silence_logs() -> Iterator[None]:
    """Discard log lines, of which hostile input causes one each time."""
    logging.disable(logging.CRITICAL)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        structlog.reset_defaults()


def check_growth(target: Target, inputs: Iterable[bytes], patience: float = 1.0) -> None:
    """Read inputs again and again.

    Raises:
        Escape: Objects remain each time.
    """
    inputs, blocks = list(inputs), []
    for _ in range(4):
        for data in inputs:
            target.examine(data, patience)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    growth = min(blocks[2] - blocks[1], blocks[3] - blocks[2])
    if growth > _GROWTH_BLOCKS_MAX:
        raise Escape(f"{growth} objects remain each time that {len(inputs)} inputs are read")
