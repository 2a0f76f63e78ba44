"""Which worker gets a request, of those that can hold it.

Every policy is deterministic: what is equal is decided by the worker's name.
"""

from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from loadline.sim.engine import Request
from loadline.sim.serving.prefix import PrefixCache
from loadline.sim.world.worker import SimulatedWorker
from loadline.traces import Arrival


class RoutedWorker(Struct, eq=False):
    """A worker as the gateway sees it: what it was given and has not finished."""

    worker: SimulatedWorker
    name: str
    prefix: PrefixCache | None
    requests: dict[str, int] = {}
    """Id at the worker -> number of the request."""
    queued_prompt_tokens: int = 0
    """Of what it was given and has not computed yet."""
    _prompt_tokens_by_id: dict[str, int] = {}

    def add(self, name: str, number: int, prompt_tokens: int) -> None:
        """It was given a request, of which it has so many tokens to compute before the next one comes out."""
        self.requests[name] = number
        self._prompt_tokens_by_id[name] = prompt_tokens
        self.queued_prompt_tokens += prompt_tokens

    def prefill_done(self, name: str) -> None:
        """The prompt of a request is computed, or need not be any more."""
        self.queued_prompt_tokens -= self._prompt_tokens_by_id.pop(name, 0)
        if self.queued_prompt_tokens < 0:
            raise AssertionError(f"worker {self.name} has {self.queued_prompt_tokens} prompt tokens to compute")

    def remove(self, name: str) -> int:
        """A request has left it; gives its number."""
        self.prefill_done(name)
        return self.requests.pop(name)

    def transfer(self, name: str, other: "RoutedWorker") -> None:
        """Another one has a request now, with what is left of it to compute."""
        left = self._prompt_tokens_by_id.get(name, 0)
        other.add(name, self.remove(name), left)

    @property
    def cached_blocks(self) -> int:
        """Blocks in its prefix cache."""
        return 0 if self.prefix is None else len(self.prefix)

    def hit_tokens(self, arrival: Arrival) -> int:
        """Tokens of the prompt whose KV cache it should still have."""
        if self.prefix is None or not arrival.prefix:
            return 0
        return min(self.prefix.hit_tokens(arrival.prefix), arrival.isl_tokens)


class DispatchQueue(Struct, eq=False):
    """The requests of one role that the same pools can hold: who could take them now, and which of them wait."""

    pools: tuple[str, ...]
    serving: list[RoutedWorker] = []
    waiting: deque[tuple[int, Request]] = field(default_factory=deque)
    """Number and how far it is; the first is next."""
    dispatched: int = 0
    """How often a station was chosen for one of them."""


RoutingPolicy = Callable[[Sequence[RoutedWorker], Arrival, int], RoutedWorker]
"""Chooses one of the stations (at least one) for an arrival, given how many were chosen before."""


def round_robin(stations: Sequence[RoutedWorker], _arrival: Arrival, chosen: int) -> RoutedWorker:
    """One after the other."""
    return stations[chosen % len(stations)]


def least_loaded(stations: Sequence[RoutedWorker], _arrival: Arrival, _chosen: int) -> RoutedWorker:
    """The fewest prompt tokens to compute, then the fewest requests."""
    return min(stations, key=lambda one: (one.queued_prompt_tokens, len(one.requests), one.name))


def kv_aware(stations: Sequence[RoutedWorker], arrival: Arrival, _chosen: int) -> RoutedWorker:
    """The least prompt work until the first token: what waits there and what of this prompt is not in the cache.

    Of those that are equal, the one with fewest requests; then the one that has to forget least for it.
    """
    return min(
        stations,
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
