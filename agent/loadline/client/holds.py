"""The requests that a worker holds, and whether it may run them: its side of ``ownership``. Pure.

A worker that hands a request over, and one that is handed it, are alike: both hold it under the next hop, neither runs
it, and the frontend's answer to a claim says who does. The source only waits a while before it claims.
"""

from typing import Final, Literal

from msgspec import Struct

# What was given up is remembered, so that an old message cannot bring it back. Messages are late by seconds.
_GIVEN_UP_MAX: Final = 4_096


class _Hold(Struct):
    hop: int
    runs: bool


class HeldRequests:
    """What one life of one worker holds."""

    def __init__(self) -> None:
        self._holds: dict[str, _Hold] = {}
        self._given_up: dict[str, int] = {}
        """Highest hop, by request."""

    def run(self, request_id: str, hop: int) -> bool:
        """The frontend has assigned it to this worker: whether it is to be run. Not where that is old news."""
        if not self._is_new(request_id, hop):
            return False
        self._holds[request_id] = _Hold(hop, runs=True)
        return True

    def hand_over(self, request_id: str) -> int | None:
        """Stop running it: the hop that the destination has to claim, and this worker to have it back; None: not run.

        The engine must have stopped it when this returns, and no output may leave under the old hop any more.
        """
        hold = self._holds.get(request_id)
        if hold is None or not hold.runs:
            return None
        hold.hop += 1
        hold.runs = False
        return hold.hop

    def expect(self, request_id: str, hop: int) -> bool:
        """It was handed over to this worker: whether the hop is to be claimed. Not where that is old news."""
        hold = self._holds.get(request_id)
        if hold is not None and hold.hop == hop:
            return not hold.runs
        if not self._is_new(request_id, hop):
            return False
        self._holds[request_id] = _Hold(hop, runs=False)
        return True

    def _is_new(self, request_id: str, hop: int) -> bool:
        hold = self._holds.get(request_id)
        return hop > (self._given_up.get(request_id, -1) if hold is None else hold.hop)

    def answered(self, request_id: str, hop: int, *, taken: bool) -> Literal["run", "drop", "ignore"]:
        """The frontend's answer to a claim, of this worker and to this hop: what to do.

        ``drop`` also where a source hears that the destination's claim was taken: pass ``taken=False``.
        """
        hold = self._holds.get(request_id)
        if hold is None or hold.hop != hop or hold.runs:
            return "ignore"
        if taken:
            hold.runs = True
            return "run"
        self.end(request_id)
        return "drop"

    def claims(self) -> list[tuple[str, int]]:
        """Requests and hops in doubt, to be claimed until there is an answer."""
        return [(name, hold.hop) for name, hold in self._holds.items() if not hold.runs]

    def hop(self, request_id: str) -> int | None:
        """The hop that it runs under, and its output bears; None: it must not run."""
        hold = self._holds.get(request_id)
        return hold.hop if hold is not None and hold.runs else None

    def end(self, request_id: str) -> None:
        """It is over here: finished, withdrawn by its user, or another's."""
        hold = self._holds.pop(request_id, None)
        if hold is None:
            return
        self._given_up.pop(request_id, None)
        self._given_up[request_id] = hold.hop
        if len(self._given_up) > _GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]
