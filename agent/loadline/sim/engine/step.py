"""Work under way: one pass with prompts in it, or a run of decode iterations in which nothing changes."""

from bisect import bisect_right

from msgspec import Struct

from loadline.sim.engine.request import Sequence

PrefillChunk = tuple[Sequence, int]
"""A sequence, and how many of its prompt tokens are computed in this step."""


class EngineStep(Struct):
    """One or many iterations. Each takes ``ramp_ms`` longer than the one before, for the batch's cache grows evenly."""

    start_ms: float
    first_ms: float
    ramp_ms: float = 0.0
    iterations: int = 1
    decodes: bool = True
    """Whether the batch gets a token in each iteration; it stands still in a pass of prompts alone."""
    chunks: list[PrefillChunk] = []
    end_ms: float = 0.0

    def __post_init__(self) -> None:
        self.end_ms = self.end_after(self.iterations)

    def end_after(self, iterations: int) -> float:
        """When so many iterations are done."""
        return self.start_ms + iterations * self.first_ms + self.ramp_ms * (iterations * (iterations - 1) // 2)

    def iterations_done(self, now_ms: float) -> int:
        """Whole iterations done at a time."""
        return bisect_right(range(1, self.iterations + 1), now_ms, key=self.end_after)

    def iteration_ms(self, done: int) -> float:
        """Time of the iteration that comes after ``done`` others."""
        return self.first_ms + self.ramp_ms * done

    def truncate(self, now_ms: float) -> None:
        """Let the iteration under way be the last one."""
        self.iterations = min(self.iterations, self.iterations_done(now_ms) + 1)
        self.end_ms = self.end_after(self.iterations)
