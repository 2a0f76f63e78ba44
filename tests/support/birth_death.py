"""Queue of an engine as a birth-death process: all states in a list, and every measure a sum over them."""

from math import exp, fsum, lgamma, log

from loadline.core.engines.linear import LinearTimes

Shape = tuple[LinearTimes, float, float, int, int]
"""Times, ISL, OSL, maximum batch size, and capacity of the queue."""


class BirthDeath:
    """States 0 to batch + queue capacity with the fraction of time in each. Times in ms, rate in requests per ms."""

    def __init__(self, shape: Shape, rate: float) -> None:
        times, isl, osl, batch, room = shape
        steps = osl - 1.0 if isl or osl > 1.0 else 1.0

        def service_ms(running: int) -> float:
            prefill = times.gamma + times.delta * isl * running if isl else 0.0
            return prefill + steps * (times.alpha + times.beta * running)

        weights = [0.0]
        for requests in range(1, batch + room + 1):
            running = min(requests, batch)
            weights.append(weights[-1] + log(rate) - log(running / service_ms(running)))
        highest = max(weights)
        scaled = [exp(weight - highest) for weight in weights]
        whole = fsum(scaled)
        self.shares = [weight / whole for weight in scaled]
        self.batch, self.room, self.rate = batch, room, rate
        self.top = batch / service_ms(batch)
        self.refused = self.shares[-1]
        self.accepted = fsum(self.shares[:-1])
        self.joined = [(min(n + 1, batch), share / self.accepted) for n, share in enumerate(self.shares[:-1])]

    @property
    def throughput(self) -> float:
        return self.rate * self.accepted

    @property
    def running(self) -> float:
        return fsum(min(n, self.batch) * share for n, share in enumerate(self.shares))

    @property
    def waiting(self) -> float:
        return fsum(max(n - self.batch, 0) * share for n, share in enumerate(self.shares))

    @property
    def joined_mean(self) -> float:
        return fsum(batch * share for batch, share in self.joined)

    def share_above(self, batch: int) -> float:
        return fsum(share for joined, share in self.joined if joined > batch)

    def share_waiting_over(self, wait_ms: float) -> float:
        """Return the fraction of waits over ``wait_ms``: behind ``batch + j`` it is j + 1 departures."""
        left, reached, found = self.top * wait_ms, 0.0, []
        for place in range(self.room):
            reached += exp(place * log(left) - left - lgamma(place + 1)) if left else float(place == 0)
            found.append(self.shares[self.batch + place] / self.accepted * min(reached, 1.0))
        return fsum(found)
