"""Steps of an engine: one pass with prompts, or a run of decode iterations without a change."""

from msgspec import Struct

from loadline.sim.engine.request import Sequence

PrefillChunk = tuple[Sequence, int]
"""A sequence, and the number of its prompt tokens in this step."""


class EngineStep(Struct):
    """One or more iterations; each takes ``ramp_ms`` longer than the previous one, as the cache grows evenly."""

    start_ms: float
    first_ms: float
    ramp_ms: float = 0.0
    iterations: int = 1
    decodes: bool = True
    """True if the batch gets a token in each iteration; a pass of prompts alone blocks it."""
    chunks: list[PrefillChunk] = []
    end_ms: float = 0.0

    def __post_init__(self) -> None:
        self.end_ms = self.end_after(self.iterations)

    def end_after(self, iterations: int) -> float:
        """Return the end of this number of iterations."""
        return self.start_ms + iterations * self.first_ms + self.ramp_ms * (iterations * (iterations - 1) // 2)

    def iterations_done(self, now_ms: float) -> int:
        """Return the number of complete iterations at a time."""
        iterations = self.iterations
        if now_ms >= self.end_ms:
            return iterations
        # Iterations take about equally long, so this is off by a few at most; a bisection takes twice as long.
        passed_ms = max(now_ms - self.start_ms, 0.0)
        done = int(iterations * passed_ms / (self.end_ms - self.start_ms)) if passed_ms else 0
        while done < iterations and self.end_after(done + 1) <= now_ms:
            done += 1
        while done > 0 and self.end_after(done) > now_ms:
            done -= 1
        return done

    def iteration_ms(self, done: int) -> float:
        """Return the duration of the iteration after ``done`` others."""
        return self.first_ms + self.ramp_ms * done

    def truncate(self, now_ms: float) -> None:
        """End the step with the current iteration."""
        self.iterations = min(self.iterations, self.iterations_done(now_ms) + 1)
        self.end_ms = self.end_after(self.iterations)
