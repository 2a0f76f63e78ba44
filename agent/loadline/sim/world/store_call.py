"""Calls to the store in virtual time, which end with an answer or a timeout."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from loadline.errors import OutcomeUnknown, StoreUnavailable
from loadline.sim.world.tasks import VirtualFuture
from loadline.sim.world.timeline import ScheduledCall, Timeline

T = TypeVar("T")


class StoreCall(Struct, Generic[T], eq=False):
    """A call to the server."""

    promise: VirtualFuture[T]
    do: Callable[[], T]
    timeout: ScheduledCall | None
    """Reserved end of the call without an answer, which few calls need; None once it is scheduled."""
    life: int
    """Life of the server at the time of the call."""
    lost: bool
    """True if the call or its answer is lost."""

    def wait_for_timeout(self, timeline: Timeline) -> None:
        """Let the call end with its timeout, as it may get no answer before."""
        timeout, self.timeout = self.timeout, None
        if timeout is not None:
            timeline.schedule(timeout)


def disconnected() -> StoreUnavailable:
    """Return the error of a call without a connection, or of a repeatable call without an answer."""
    return StoreUnavailable("the store is disconnected")


def time_out(promise: VirtualFuture[Any], *, repeatable: bool) -> None:
    """End a call without an answer."""
    promise.set_exception(disconnected() if repeatable else OutcomeUnknown("the answer was lost"))
