"""Routing policies: choice of the worker for a request.

Every policy is deterministic; the worker's name breaks ties.
"""

from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from loadline.sim.engine import Request
from loadline.sim.serving.prefix import PrefixCache
from loadline.sim.world.worker import SimulatedWorker
from loadline.traces import Arrival


class RoutedWorker(Struct, eq=False):
    """A worker with its assigned and unfinished requests, as the frontend sees it."""

    worker: SimulatedWorker
    name: str
    prefix: PrefixCache | None
    requests: dict[str, int] = {}
    """Id at the worker -> number of the request."""
    queued_prompt_tokens: int = 0
    """Prompt tokens of assigned requests that are still to compute."""
    _prompt_tokens_by_id: dict[str, int] = {}

    def add(self, name: str, number: int, prompt_tokens: int) -> None:
        """Add a request with this number of tokens to compute before its next token."""
        self.requests[name] = number
        self._prompt_tokens_by_id[name] = prompt_tokens
        self.queued_prompt_tokens += prompt_tokens

    def prefill_done(self, name: str) -> None:
        """Record that the prompt of a request is computed or needs no computation any more."""
        self.queued_prompt_tokens -= self._prompt_tokens_by_id.pop(name, 0)
        if self.queued_prompt_tokens < 0:
            raise AssertionError(f"worker {self.name} has {self.queued_prompt_tokens} prompt tokens to compute")

    def remove(self, name: str) -> int:
        """Remove a request and return its number."""
        self.prefill_done(name)
        return self.requests.pop(name)

    def transfer(self, name: str, other: "RoutedWorker") -> None:
        """Move a request to another worker, with its remaining prompt tokens."""
        left = self._prompt_tokens_by_id.get(name, 0)
        other.add(name, self.remove(name), left)

    @property
    def cached_blocks(self) -> int:
        """Blocks in its prefix cache."""
        return 0 if self.prefix is None else len(self.prefix)

    def hit_tokens(self, arrival: Arrival) -> int:
        """Return the prompt tokens whose KV cache it should still have."""
        if self.prefix is None or not arrival.prefix:
            return 0
        return min(self.prefix.hit_tokens(arrival.prefix), arrival.isl_tokens)


class DispatchQueue(Struct, eq=False):
    """Requests of one role that the same pools can hold: the waiting ones, and the serving workers."""

    pools: tuple[str, ...]
    serving: list[RoutedWorker] = []
    waiting: deque[tuple[int, Request]] = field(default_factory=deque)
    """Numbers and requests, the next one first."""
    dispatched: int = 0
    """Number of requests dispatched from this queue."""


RoutingPolicy = Callable[[Sequence[RoutedWorker], Arrival, int], RoutedWorker]
"""Chooses one of the workers (at least one) for an arrival, given the number of earlier dispatches."""


def round_robin(workers: Sequence[RoutedWorker], _arrival: Arrival, dispatched: int) -> RoutedWorker:
    """Choose the workers in turn."""
    return workers[dispatched % len(workers)]


def least_loaded(workers: Sequence[RoutedWorker], _arrival: Arrival, _dispatched: int) -> RoutedWorker:
    """Choose the worker with the fewest prompt tokens to compute, then the fewest requests."""
    return min(workers, key=lambda one: (one.queued_prompt_tokens, len(one.requests), one.name))


def kv_aware(workers: Sequence[RoutedWorker], arrival: Arrival, _dispatched: int) -> RoutedWorker:
    """Choose the worker with the least prefill work before the first token: its queue minus its cache hits.

    Ties go to the worker with the fewest requests, then to the one with the fewest cached blocks.
    """
    return min(
        workers,
        key=lambda one: (
            one.queued_prompt_tokens - one.hit_tokens(arrival),
            len(one.requests),
            one.cached_blocks,
            one.name,
        ),
    )


ROUTING_POLICIES: dict[str, RoutingPolicy] = {
    "round_robin": round_robin,
    "least_loaded": least_loaded,
    "kv_aware": kv_aware,
}
