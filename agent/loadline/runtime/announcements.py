"""Answers to requests of scalers for the current decisions."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from loadline.core.controller import Controller
from loadline.core.vocabulary.events import AnnouncementRequested
from loadline.runtime.inbox import Inbox
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import AnnounceReply, AnnounceRequest

ANNOUNCE_DELAY_S = 0.1
"""Time in which requests for announcements are joined: all scalers may start at once."""


class Announcer(Protocol):
    """An agent, or one shard of it, that announces the decisions of its models."""

    @property
    def controller(self) -> Controller:
        """Its controller."""
        ...

    @property
    def inbox(self) -> Inbox:
        """Its inbox."""
        ...


class AnnounceRequests:
    """Requests that one agent receives.

    Args:
        leading: Returns those of its announcers that lead their models.
        shared: True if agents share the models; each then answers for those that it leads.
        call_later: Calls a function after a time in s.
    """

    def __init__(
        self,
        leading: Callable[[], Sequence[Announcer]],
        *,
        shared: bool,
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._leading = leading
        self._shared = shared
        self._call_later = call_later
        self._announcing: dict[str, str] = {}
        """Requesters by model."""

    def answer(self, payload: bytes) -> bytes | None:
        """Answer a request, and announce the decisions soon; None: another agent answers."""
        known, leading = self._models(), self._leading()
        if not leading:
            return None
        request = decode_as(AnnounceRequest, payload)
        if isinstance(request, Rejected):
            return _refusal(request.detail)
        led = [model for model in request.models if model in known]
        if not led:
            return None if self._shared else _refusal(_unknown(request.models, known))
        read = tuple(model for model in led if known[model].controller.state.decisions_read)
        if not read:
            return _refusal("the decisions have not been read yet; ask again")
        if not self._announcing:
            self._call_later(ANNOUNCE_DELAY_S, self._announce)
        self._announcing.update((model, request.by) for model in read)
        is_partial = self._shared or len(led) < len(request.models)
        return encode(AnnounceReply(accepted=True, models=read if is_partial else ()))

    def _models(self) -> dict[str, Announcer]:
        return {name: one for one in self._leading() for name in one.controller.state.fleet.models}

    def _announce(self) -> None:
        known = self._models()
        for model, by in self._announcing.items():
            if model in known:
                known[model].inbox.put(AnnouncementRequested(model, by))
        self._announcing = {}


def _unknown(models: Sequence[str], known: Iterable[str]) -> str:
    return f"there is no model {models[0]!r}; there are: {', '.join(sorted(known))}"


def _refusal(detail: str) -> bytes:
    return encode(AnnounceReply(accepted=False, detail=detail[:256]))
