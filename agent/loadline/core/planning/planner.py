"""What a planner is."""

from typing import Any, ClassVar

from msgspec import Struct

from loadline.core.fleet.fleet import Model
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import ForecastQuery, History
from loadline.core.vocabulary.reasons import Recommendation


class ForecastRequest(Struct, frozen=True):
    """Forecasts that a planner wants; the answer carries the same ``request``."""

    request: int
    questions: list[ForecastQuery]


class Planner(Struct):
    """Turns what is believed of one model into an opinion.

    A planner's fields are its knobs and its windows: encoded, it is its own state. It is not told whether its opinion
    was followed: it sees that in the pools (``desired``, ``scaled_up_at_ms``), so the two cannot drift apart.
    """

    name: ClassVar[str] = ""

    by_pool: ClassVar[tuple[str, ...]] = ()
    """Names of its fields that hold something for each pool."""

    knobs: Any

    def obey(self, knobs: Any) -> None:
        """Go by these knobs from now on. What was seen is kept, as far as it still means the same."""
        before, self.knobs = self.knobs, knobs
        if knobs != before:
            self.adapt(before)

    def adapt(self, before: Any) -> None:
        """The knobs are others now than ``before``: windows and times that were made from those follow."""

    def forget(self, pool: str) -> None:
        """There is no such pool any more, or it is another one."""
        for name in self.by_pool:
            getattr(self, name).pop(pool, None)

    def warm(self, history: History) -> None:
        """Take what was before the first look for the past. Most have no use for it."""

    def plan(self, model: Model, now: int) -> Recommendation:
        """Give an opinion at ``now`` (ms). Called whenever the model's picture changed, and at ``next_wake``.

        The opinion's ``targets`` hold absolute counts for the pools that should change; no targets is a hold. Reasons
        are always given.
        """
        raise NotImplementedError

    def next_wake(self) -> int:
        """When (ms) it wants to look again even if nothing happens."""
        raise NotImplementedError

    def follow(self, requests: int) -> None:
        """Take the place of planners that have asked for so many forecasts: what is late is none of its."""

    def asked(self) -> ForecastRequest | None:
        """What it wants to have forecast since the last call. Most want nothing."""
        return None

    def take(self, answer: ForecastFitted | ForecastFailed) -> None:
        """A forecast came, or none can be had. What it did not ask for, or asks for no more, it ignores."""

    def learned(self) -> bytes | None:
        """What it has learned of the engines, to be kept beyond this agent; None: nothing. Most learn nothing.

        The same bytes as long as it has learned nothing new: only what changed need be written.
        """
        return None

    def learn(self, data: bytes) -> None:
        """Begin with what another agent's planner had learned, before the first look.

        What cannot be read, or is of no use any more, it ignores: then it learns anew.
        """
