"""Child process that solves allocation problems."""

import msgspec
from msgspec import Struct

from loadline.adapters.frames import answer_all
from loadline.core.vocabulary.allocations import AllocationProblem
from loadline.solver import solve


class SolveRequest(Struct, frozen=True):
    """An allocation problem and the time limit of its solution."""

    problem: AllocationProblem
    time_limit_s: float


def main() -> None:
    """Answer problems with allocations; see ``answer_all``. SciPy is imported first: no time limit includes that."""
    decoder = msgspec.json.Decoder(SolveRequest)

    def answer(frame: bytes) -> bytes:
        request = decoder.decode(frame)
        return msgspec.json.encode(solve(request.problem, request.time_limit_s))

    answer_all(answer, ["loadline.solver.exact"])


if __name__ == "__main__":
    main()
