"""Longest waits of requests between two tokens, which means hide: preemptions, other prompts and migrations.

All members of a batch get their tokens together, so a wait is recorded once for all of them, and a leaving member
looks up the longest since it joined, in O(log n).
"""

from bisect import bisect_left

from loadline.sim.engine.request import Sequence
from loadline.sim.engine.step import EngineStep


class TokenGaps:
    """The waits of one batch, by iteration."""

    def __init__(self) -> None:
        self._last_token_ms = 0.0
        """Time of the batch's newest token."""
        self._awaiting_first: list[Sequence] = []
        # The longest waits: each is shorter than the previous one, and iteration numbers rise.
        self._iterations: list[int] = []
        self._gaps_ms: list[float] = []

    def record_token(self, sequence: Sequence, at_ms: float) -> None:
        """Record a token outside of the batch."""
        if sequence.last_token_ms is not None:
            sequence.token_gap_max_ms = max(sequence.token_gap_max_ms, at_ms - sequence.last_token_ms)
        sequence.last_token_ms = at_ms

    def add(self, sequence: Sequence) -> None:
        """Add a sequence that waits for its first token in the batch."""
        self._awaiting_first.append(sequence)

    def record_step(self, step: EngineStep, before: int) -> None:
        """Record a step in which all members got tokens, after ``before`` iterations."""
        first_ms = step.start_ms + step.first_ms
        for sequence in self._awaiting_first:
            self.record_token(sequence, first_ms)
        self._awaiting_first.clear()
        self._push(before + 1, first_ms - self._last_token_ms)
        if step.iterations > 1:
            self._push(before + step.iterations, max(step.iteration_ms(1), step.iteration_ms(step.iterations - 1)))
        self._last_token_ms = step.end_ms

    def remove(self, sequence: Sequence, iterations: int) -> None:
        """Remove a sequence after ``iterations`` of the batch and store its longest wait in it."""
        if iterations == sequence.joined_at_iteration:
            self._awaiting_first = [one for one in self._awaiting_first if one is not sequence]
            return
        place = bisect_left(
            self._iterations, sequence.joined_at_iteration + 2
        )  # its first token in the batch was recorded separately
        if place < len(self._gaps_ms):
            sequence.token_gap_max_ms = max(sequence.token_gap_max_ms, self._gaps_ms[place])
        sequence.last_token_ms = self._last_token_ms

    def clear(self) -> None:
        """Forget all waits, since the batch is empty."""
        self._iterations.clear()
        self._gaps_ms.clear()

    def _push(self, iteration: int, gap_ms: float) -> None:
        while self._gaps_ms and self._gaps_ms[-1] <= gap_ms:
            self._gaps_ms.pop()
            self._iterations.pop()
        self._gaps_ms.append(gap_ms)
        self._iterations.append(iteration)
