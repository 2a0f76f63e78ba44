"""The child process that allocates."""

import sys

import msgspec
from msgspec import Struct

from loadline.adapters.frames import answer_all
from loadline.core.vocabulary.allocations import AllocationProblem
from loadline.solver import solve


class SolveRequest(Struct, frozen=True):
    """A problem, and how long its solution may take."""

    problem: AllocationProblem
    time_limit_s: float


def main(imports: list[str]) -> None:
    """Answer problems with allocations; see ``answer_all``."""
    decoder = msgspec.json.Decoder(SolveRequest)

    def answer(frame: bytes) -> bytes:
        asked = decoder.decode(frame)
        return msgspec.json.encode(solve(asked.problem, asked.time_limit_s))

    answer_all(answer, imports)


if __name__ == "__main__":
    main(sys.argv[1:])
