"""Load of a worker during the life of the requests that complete now.

Frontends report the ITL of a request when it completes, which is that of the batches since it began. While the load
falls, a request of a minute has the ITL of the load of half a minute before.
"""

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.planning.sizing.evidence.pool_second import PoolSecond


class LifetimeLoad(Struct):
    """Exponential means of the load of a worker, whose age is that of the load in the mean ITL of a request."""

    ready: int = 0
    """Workers of the pool in these seconds; 0: none yet."""
    running: float = 0.0
    kv: float = 0.0

    def begin(self, second: PoolSecond) -> None:
        """Begin anew with a second, as the workers have changed."""
        self.ready, self.running, self.kv = second.ready, second.running, second.kv

    def add(self, second: PoolSecond, request_ms: float) -> PoolSecond:
        """Return a second with the load during the life of its requests, which take ``request_ms`` on average.

        The first second of a pool counts in full: an agent that starts beside a busy fleet has not seen it idle.
        """
        if second.ready != self.ready:
            self.begin(second)
        weight = min(1.0, 2_000.0 / max(1.0, request_ms))  # for samples of a second: half a request ago
        self.running += (second.running - self.running) * weight
        self.kv += (second.kv - self.kv) * weight
        return replace(second, running=self.running, kv=self.kv)
