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
        run: Reads one input with a fresh reader. If it returns a function, that checks what the reader made of the
            input, which takes no time of an agent.
        seeds: Valid inputs; mutants of JSON are of its grammar.
        declared: Exceptions by which it refuses input.
        ms_max: CPU time per 16 KiB.
    """

    name: str
    run: Callable[[bytes], Callable[[], None] | None]
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
        allowed_ms = patience * self.ms_max
        took_ms = self.cost_ms(data, above=allowed_ms)
        if took_ms > allowed_ms:
            raise Escape(f"{len(data)} bytes took {took_ms:.1f} ms per 16 KiB, {allowed_ms:g} are allowed")

    def cost_ms(self, data: bytes, above: float = 0.0) -> float:
        """Return the CPU time of one input per 16 KiB.

        Args:
            data: The input.
            above: A time up to this one is that of a single reading; a longer one is the shortest of several, since
                another process or a collection of garbage may have taken it.

        Raises:
            Escape: It raises an exception that is not declared.
        """
        units = math.ceil(max(len(data), 1) / SIZE_UNIT_BYTES)
        took_ms = self._timed(data) / units
        for _ in range(_REPEATS):
            if took_ms <= above:
                break
            took_ms = min(took_ms, self._timed(data) / units)
        return took_ms

    def _timed(self, data: bytes) -> float:
        began_ns = time.thread_time_ns()
        try:
            check = self.run(data)
            took_ns = time.thread_time_ns() - began_ns
            if check is not None:
                check()
        except self.declared:
            took_ns = time.thread_time_ns() - began_ns
        except Exception as error:
            raise Escape(f"{type(error).__name__}: {error}"[:500]) from error
        return took_ns / 1e6


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
