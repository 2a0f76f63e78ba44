"""Rolling windows over time. They know numbers and milliseconds, and nothing of what the numbers mean."""

from msgspec import Struct


class RollingSamples(Struct):
    """Samples of the last ``window_ms``, oldest first. A gap in the data empties it by itself."""

    window_ms: int
    at_ms: list[int] = []
    values: list[float] = []

    def push(self, now: int, value: float) -> None:
        """Add a sample and drop those that are older than the window."""
        self.at_ms.append(now)
        self.values.append(value)
        self.prune(now)

    def prune(self, now: int) -> None:
        """Drop the samples that are older than the window."""
        oldest = now - self.window_ms
        drop = 0
        for at in self.at_ms:
            if at >= oldest:
                break
            drop += 1
        if drop:
            del self.at_ms[:drop]
            del self.values[:drop]

    def clear(self) -> None:
        """Forget everything."""
        self.at_ms.clear()
        self.values.clear()

    def mean_with(self, current: float) -> float:
        """Mean of the samples and the current value, which has not been sampled yet."""
        return (sum(self.values) + current) / (len(self.values) + 1)


class RollingMax(Struct):
    """Maximum of a step function over a window; a value holds until the next one is pushed.

    A step that a later step reaches or passes can never be the maximum again: the later one takes its place and its
    time, for that is when the step before both ended. What is kept falls strictly: never more entries than there are
    distinct values.
    """

    window_ms: int
    at_ms: list[int] = []
    values: list[int] = []

    def push(self, now: int, value: int) -> None:
        """The function has this value from now on."""
        if self.values and self.values[-1] == value:
            return
        since = now
        while self.values and self.values[-1] <= value:
            self.values.pop()
            since = self.at_ms.pop()
        self.values.append(value)
        self.at_ms.append(since)

    def max(self, now: int) -> int | None:
        """Highest value that held at any time in ``[now - window_ms, now]``; None before the first."""
        oldest = now - self.window_ms
        # The first step counts until the second begins, so it may only go once the second began before the window.
        while len(self.at_ms) > 1 and self.at_ms[1] <= oldest:
            del self.at_ms[0]
            del self.values[0]
        return self.values[0] if self.values else None
