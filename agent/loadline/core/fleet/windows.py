"""Rolling windows over time, for any values."""

from msgspec import Struct


class RollingSamples(Struct):
    """Samples of the last ``window_ms``, oldest first. A gap in the data empties the window."""

    window_ms: int
    at_ms: list[int] = []
    values: list[float] = []

    def push(self, now: int, value: float) -> None:
        """Add a sample and remove those older than the window."""
        self.at_ms.append(now)
        self.values.append(value)
        self.prune(now)

    def prune(self, now: int) -> None:
        """Remove the samples older than the window."""
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
        """Remove all samples."""
        self.at_ms.clear()
        self.values.clear()

    def falls_below_ms(self, value: float, now: int) -> int:
        """Return the time at which the last sample of at least a value leaves the window; ``now`` if there is none."""
        reaching = (at for at, sample in zip(self.at_ms, self.values, strict=True) if sample >= value)
        return max((at + self.window_ms + 1 for at in reaching), default=now)

    def mean_with(self, current: float) -> float:
        """Return the mean of the samples and a current value that is not a sample yet."""
        return (sum(self.values) + current) / (len(self.values) + 1)


class RollingMax(Struct):
    """Maximum of a step function over a window; a value holds until the next one is pushed.

    A monotonic queue: a value that a later one reaches or exceeds can never be the maximum again, so the later one
    replaces it and takes over its time. The kept values decrease strictly.
    """

    window_ms: int
    at_ms: list[int] = []
    values: list[int] = []

    def push(self, now: int, value: int) -> None:
        """Set the value of the function from ``now`` on."""
        if self.values and self.values[-1] == value:
            return
        since = now
        while self.values and self.values[-1] <= value:
            self.values.pop()
            since = self.at_ms.pop()
        self.values.append(value)
        self.at_ms.append(since)

    def max(self, now: int) -> int | None:
        """Return the highest value at any time in ``[now - window_ms, now]``; None before the first value."""
        oldest = now - self.window_ms
        # The first value holds until the second begins, so it expires once the second began before the window.
        while len(self.at_ms) > 1 and self.at_ms[1] <= oldest:
            del self.at_ms[0]
            del self.values[0]
        return self.values[0] if self.values else None

    def falls_below_ms(self, value: int, now: int) -> int:
        """Return the time at which the maximum falls below a value that it reaches now.

        Assumes that a lower value holds from now on.
        """
        lower = (at for at, kept in zip(self.at_ms, self.values, strict=True) if kept < value)
        return min(lower, default=now) + self.window_ms
