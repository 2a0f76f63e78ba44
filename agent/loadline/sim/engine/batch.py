"""The running batch: sequences that get one token in each iteration.

Each member gets one token per iteration, so the batch counts iterations only, and stores for each member the iteration
at which it finishes and how its cache fills blocks. Joining and leaving cost O(log n), iterations O(1), and the use of
blocks after any number of further iterations O(block size) after a change, then O(1).
"""

from heapq import heappop, heappush
from itertools import accumulate

from loadline.sim.engine.request import Sequence
from loadline.sim.engine.step import EngineStep
from loadline.sim.engine.token_gaps import TokenGaps


class RunningBatch:
    """Sequences that decode together.

    Args:
        block_size_tokens: Tokens in a KV block.
    """

    def __init__(self, block_size_tokens: int) -> None:
        self.size = 0
        """Number of members: reading it takes a quarter of the time of ``len()``, and engines do for every step."""
        self._block_size_tokens = block_size_tokens
        self._iterations = 0  # in total
        self._joins = 0
        self._members: dict[int, Sequence] = {}  # in the order of joining
        self._finishes: list[tuple[int, int]] = []  # heap of (iterations at the end, number), with stale entries
        self._kv_offset = 0  # sum of the KV tokens of all members at iteration 0, which may be negative
        # The same offsets in blocks, rounded up: after i iterations, ceil((offset + i) / size) is the quotient, plus
        # one if remainder and i fill another block. ``_remainders[r]`` counts the members with remainder r.
        self._quotients = 0
        self._remainders = [0] * block_size_tokens
        self._fills: list[int] | None = None  # members that fill another block with r more tokens, by r

        self.token_gaps = TokenGaps()
        """Waits of the members between tokens."""

    def __contains__(self, sequence: Sequence) -> bool:
        return self._members.get(sequence.join_number) is sequence

    @property
    def members(self) -> list[Sequence]:
        """All members in the order of joining."""
        return list(self._members.values())

    @property
    def newest(self) -> Sequence:
        """Member that joined last; the batch must not be empty."""
        return self._members[next(reversed(self._members))]

    def kv_tokens(self, iterations: int = 0) -> int:
        """Return the KV tokens held after further iterations."""
        return self._kv_offset + self.size * (self._iterations + iterations)

    def blocks(self, iterations: int = 0) -> int:
        """Return the KV blocks held after further iterations."""
        whole, rest = divmod(self._iterations + iterations, self._block_size_tokens)
        fills = self._fills
        if fills is None:
            fills = self._fills = list(accumulate(reversed(self._remainders), initial=0))
        return self._quotients + whole * self.size + fills[rest]

    def generated(self, sequence: Sequence) -> int:
        """Return the tokens that a member has generated."""
        return sequence.generated_tokens + self._iterations - sequence.joined_at_iteration

    def iterations_to_finish(self) -> int:
        """Return the iterations until the first member finishes; the batch must not be empty."""
        while self._finishes[0][1] not in self._members:
            heappop(self._finishes)
        return self._finishes[0][0] - self._iterations

    def join(self, sequence: Sequence) -> None:
        """Add a sequence that has its cache."""
        self._joins += 1
        self.token_gaps.add(sequence)
        sequence.join_number, sequence.joined_at_iteration = self._joins, self._iterations
        self._members[sequence.join_number] = sequence
        self.size += 1
        left = sequence.request.osl_tokens - sequence.generated_tokens
        heappush(self._finishes, (self._iterations + left, sequence.join_number))
        self._account(sequence, 1)

    def leave(self, sequence: Sequence) -> None:
        """Remove a member and store its progress in it."""
        self._account(sequence, -1)
        del self._members[sequence.join_number]
        self.size -= 1
        sequence.generated_tokens = self.generated(sequence)
        self.token_gaps.remove(sequence, self._iterations)
        if not self.size:
            self.token_gaps.clear()

    def record_step(self, step: EngineStep) -> None:
        """Record the tokens of a step, before ``advance``."""
        self.token_gaps.record_step(step, self._iterations)

    def advance(self, iterations: int) -> list[Sequence]:
        """Run iterations, at most until the first member finishes; return the finished in the order of joining."""
        self._iterations += iterations
        finished = []
        while self._finishes and self._finishes[0][0] <= self._iterations:
            sequence = self._members.get(heappop(self._finishes)[1])
            if sequence is not None:
                self.leave(sequence)
                finished.append(sequence)
        return finished

    def _account(self, sequence: Sequence, sign: int) -> None:
        offset = sequence.request.isl_tokens + sequence.generated_tokens - 1 - sequence.joined_at_iteration
        quotient, remainder = divmod(offset + self._block_size_tokens - 1, self._block_size_tokens)
        self._kv_offset += sign * offset
        self._quotients += sign * quotient
        self._remainders[remainder] += sign
        self._fills = None
