"""What a planner is."""

from typing import Any, ClassVar, Protocol

from loadline.core.belief.fleet import Model
from loadline.core.report import Opinion


class Planner(Protocol):
    """Turns what is believed of one model into an opinion.

    A planner is a msgspec Struct whose fields are its knobs and its windows: encoded, it is its own state. It is not
    told whether its opinion was followed: it sees that in the pools (``desired``, ``grown_at_ms``), so the two cannot
    drift apart.
    """

    name: ClassVar[str]

    def __init__(self, knobs: Any) -> None: ...

    def plan(self, model: Model, now: int) -> Opinion:
        """Give an opinion at ``now`` (ms). Called whenever the model's picture changed, and at ``next_wake``.

        The opinion's ``targets`` hold absolute counts for the pools that should change; no targets is a hold. Reasons
        are always given.
        """
        ...

    def next_wake(self) -> int:
        """When (ms) it wants to look again even if nothing happens."""
        ...
