"""Requests that a worker holds, and which of them it may run: the worker's side of ``ownership``. Pure.

Source and destination of a handover are in the same state: both hold the request under the next hop, neither runs it,
and the frontend's answer to a claim decides which one does. The source claims later than the destination.
"""

from collections import OrderedDict
from typing import Final, Literal

from msgspec import Struct

# Ended requests are remembered, so that a delayed message cannot bring one back. Messages may be seconds late.
_ENDED_MAX: Final = 4_096


class _HeldRequest(Struct):
    hop: int
    runs: bool


class HeldRequests:
    """Requests held by one incarnation of a worker."""

    def __init__(self) -> None:
        self._held: dict[str, _HeldRequest] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        """Highest hop of ended requests, the first to be forgotten first.

        The first key of a plain dictionary is found behind all those that were removed there.
        """

    def assign(self, request_id: str, hop: int) -> bool:
        """Hold a request that the frontend assigned; return whether to run it. False: the assignment is outdated."""
        if not self._is_new(request_id, hop):
            return False
        self._held[request_id] = _HeldRequest(hop, runs=True)
        return True

    def hand_over(self, request_id: str) -> int | None:
        """Stop running a request; return the hop to claim, for the destination and for this worker. None: not running.

        The engine must have stopped the request, and no output may leave under the old hop any more.
        """
        held = self._held.get(request_id)
        if held is None or not held.runs:
            return None
        held.hop += 1
        held.runs = False
        return held.hop

    def expect(self, request_id: str, hop: int) -> bool:
        """Hold a request that was handed over; return whether to claim the hop. False: the handover is outdated."""
        held = self._held.get(request_id)
        if held is not None and held.hop == hop:
            return not held.runs
        if not self._is_new(request_id, hop):
            return False
        self._held[request_id] = _HeldRequest(hop, runs=False)
        return True

    def _is_new(self, request_id: str, hop: int) -> bool:
        held = self._held.get(request_id)
        return hop > (self._ended.get(request_id, -1) if held is None else held.hop)

    def resolve_claim(self, request_id: str, hop: int, *, granted: bool) -> Literal["run", "drop", "ignore"]:
        """Apply the frontend's answer to a claim of this worker to this hop, and return what to do with the request.

        Pass ``granted=False`` also where a source learns that the destination's claim was granted.
        """
        held = self._held.get(request_id)
        if held is None or held.hop != hop or held.runs:
            return "ignore"
        if granted:
            held.runs = True
            return "run"
        self.end(request_id)
        return "drop"

    def unresolved(self) -> list[tuple[str, int]]:
        """Return requests and hops whose owner this worker does not know: it claims them until it gets an answer."""
        return [(name, held.hop) for name, held in self._held.items() if not held.runs]

    def hop(self, request_id: str) -> int | None:
        """Return the hop under which a request runs, which its output carries; None: it must not run."""
        held = self._held.get(request_id)
        return held.hop if held is not None and held.runs else None

    def end(self, request_id: str) -> None:
        """Stop holding a request: it finished, its user withdrew it, or another worker owns it."""
        held = self._held.pop(request_id, None)
        if held is None:
            return
        self._ended.pop(request_id, None)
        self._ended[request_id] = held.hop
        if len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)
