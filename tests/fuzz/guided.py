"""Fuzz one target guided by its coverage, in a process of its own: ``python -m tests.fuzz.guided`` (see ``__main__``).

libFuzzer chooses the inputs and half of the mutations; the other half are of the target's grammar. What escapes is
written to a folder and examined later without instrumentation, which makes code slower.
"""

import argparse
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import atheris

with atheris.instrument_imports(include=["loadline"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.mutation import BYTES_MAX, mutate, regrown, words_of
from tests.fuzz.target import Escape, silence_logs

SUSPECTS_MAX = 40
PROGRESS_CASES = 1_000
"""Cases after which their number is written, for a run that is ended before its last case."""
PATIENCE = 8.0
"""Instrumented code is up to this much slower."""


HANG_S = 5.0
"""CPU time after which a case is given up; libFuzzer would end the process."""


class Hang(Exception):
    """Case that does not end."""


def give_up(_signal: int, _frame: object) -> NoReturn:
    """End the case."""
    raise Hang


class Guided:
    """Cases of one target."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.target = TARGETS[options.target]
        self.cases_max: int = options.cases
        self.folder: Path = options.folder
        self.cases = 0
        self.places: set[object] = set()
        self.words = words_of(self.target.seeds)

    def test(self, data: bytes) -> None:
        """Examine one input, and end the process after the last one."""
        self.cases += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
        try:
            self.target.examine(data, PATIENCE)
        except Escape as escape:
            self._suspect(data, escape)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        if self.cases % PROGRESS_CASES == 0 or self.cases >= self.cases_max:
            (self.folder / "cases").write_text(str(self.cases), "ascii")
        if self.cases >= self.cases_max:
            sys.stdout.flush()
            os._exit(0)  # libFuzzer would write what it found once more

    def mutated(self, data: bytes, max_size: int, seed: int) -> bytes:
        """Return a mutant, half of them of the grammar."""
        rng = random.Random(seed)
        match rng.randrange(4):
            case 0:
                return mutate(rng, data, self.words)[:max_size]
            case 1:
                return self._regrown(rng, data)[:max_size]
            case _:
                return bytes(atheris.Mutate(data, max_size))

    def _regrown(self, rng: random.Random, data: bytes) -> bytes:
        """Return an input whose last line, if it is JSON, has other values."""
        head, line, last = data.rpartition(b"\n")
        try:
            return head + line + regrown(rng, last)
        except (ValueError, OverflowError, RecursionError):
            return mutate(rng, data, self.words)

    def _suspect(self, data: bytes, escape: Escape) -> None:
        cause = escape.__cause__
        frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
        place: Any = (type(cause), frames[-1].filename, frames[-1].lineno) if frames else len(data).bit_length()
        if place not in self.places and len(self.places) < SUSPECTS_MAX:
            self.places.add(place)
            (self.folder / "suspects" / f"escape-{len(self.places)}").write_bytes(data)


def main() -> None:
    """Fuzz the target of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", type=int)
    parser.add_argument("seed", type=int)
    options = parser.parse_args()
    signal.signal(signal.SIGVTALRM, give_up)
    guided = Guided(options)
    flags = [
        f"-max_len={BYTES_MAX}",
        f"-seed={options.seed}",
        "-timeout=30",
        "-rss_limit_mb=2048",
        "-verbosity=0",
        f"-artifact_prefix={options.folder}/suspects/",
        str(options.folder / "corpus"),
    ]
    with silence_logs():
        atheris.Setup([sys.argv[0], *flags], guided.test, custom_mutator=guided.mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
