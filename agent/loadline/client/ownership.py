"""Who owns a request. Kept by whoever holds the user's stream, the frontend: it alone knows what the user got. Pure.

Two workers cannot agree by messages that may be lost which of them has a request. So neither decides it: the frontend
does, at one place, with one number. Each ownership of a request has a *hop*, one higher than the one before, and it is
taken by a *claim*, a compare-and-set on that number:

1. A source that hands a request over stops it, and gives the destination its state and the next hop, ``h + 1``.
2. The destination claims ``h + 1``. It runs the request only once it has heard that its claim was taken.
3. A source that does not hear how that ended claims ``h + 1`` *for itself*, again and again until it has an answer. If
   its claim is taken, the destination's never can be: the source resumes, at ``h + 1``. If it is refused, the
   destination owns it, and the source forgets it. If the frontend is gone, so is the user, and nobody runs it.

So of the two claims to one hop exactly one is taken, and whoever lost learns that it lost. Nobody runs a request in
between, but somebody always can: both claims may be repeated for ever, for an owner's claim is always taken again. An
answer to a claim may come late or twice: it is only good for a worker that has not given away that hop since. Output
tokens bear the hop they were made under; those of an earlier owner change nothing (``accepts``). A claim that may
overtake the tokens of the source should be answered with how many tokens the user has; the destination goes on there.
"""

from msgspec import Struct


class RequestOwner(Struct, frozen=True):
    """One life of a worker that owns a request."""

    worker: str
    incarnation: int
    hop: int
    """How many owners the request had before."""


class RequestOwners:
    """The owners of the requests of one frontend. As large as the requests it holds: whoever begins one ends it."""

    def __init__(self) -> None:
        self._owners: dict[str, RequestOwner] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def assign(self, request_id: str, worker: str, incarnation: int) -> int:
        """The frontend itself gives a request to a worker, be it for the first time or because its owner died.

        Gives the hop that the worker owns it under. No claim that is under way can be taken any more.
        """
        before = self._owners.get(request_id)
        hop = 0 if before is None else before.hop + 1
        self._owners[request_id] = RequestOwner(worker, incarnation, hop)
        return hop

    def claim(self, request_id: str, worker: str, incarnation: int, hop: int) -> bool:
        """Whether the worker owns the request under that hop: now, or already, for a claim may be repeated."""
        before = self._owners.get(request_id)
        if before is None:
            return False
        claimed = RequestOwner(worker, incarnation, hop)
        if hop == before.hop + 1:
            self._owners[request_id] = claimed
            return True
        return before == claimed

    def owner(self, request_id: str) -> RequestOwner | None:
        """Who owns it; None: it is over, or was never here."""
        return self._owners.get(request_id)

    def accepts(self, request_id: str, hop: int) -> bool:
        """Whether output that was made under that hop is its owner's."""
        owner = self._owners.get(request_id)
        return owner is not None and owner.hop == hop

    def end(self, request_id: str) -> None:
        """It is over, whichever way: nobody owns it any more, and no claim to it is taken."""
        self._owners.pop(request_id, None)
