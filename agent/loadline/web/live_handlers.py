"""HTTP handlers of the live page."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol
from urllib.parse import parse_qs

import msgspec
from aiohttp import web
from msgspec import Struct

from loadline.core.vocabulary.scalars import Name
from loadline.runtime.shared_answers import SharedAnswers
from loadline.web.access import Access
from loadline.web.live_page import LivePage
from loadline.web.plain_table import ASK, tables
from loadline.web.site import html, json, protected, static_routes
from loadline.wire.messages import OperatorReply

MODEL_CHARS_MAX: Final = 128
_CLOSED: Final = (
    "<p>This page is served to other machines only with a token: set token_file in [http], or listen on 127.0.0.1.</p>"
)


class SetPaused(Protocol):
    """Pauses or resumes a model."""

    def __call__(self, model: str, by: str, *, paused: bool) -> Awaitable[OperatorReply]:
        """Pause or resume a model in the name of somebody."""


class PageOrder(Struct, frozen=True):
    """A model to pause or resume."""

    model: Name


class LiveHandlers:
    """Handlers of a running agent's page.

    Args:
        page: Page data.
        access: Rules of access.
        set_paused: Pauses or resumes a model.
    """

    def __init__(self, page: LivePage, access: Access, set_paused: SetPaused) -> None:
        self._page = page
        self._access = access
        self._set_paused = set_paused
        self._tables: SharedAnswers[str] = SharedAnswers()

    def routes(self) -> list[web.RouteDef]:
        """Return all routes of the page."""
        return [
            web.get("/", protected(self._show)),
            web.post("/", protected(self._show)),
            web.get("/api/events", protected(self._follow), allow_head=False),  # HEAD would never end
            web.get("/api/history", protected(self._answer(self._page.history))),
            web.get("/api/decisions", protected(self._answer(self._page.decisions))),
            web.post("/api/pause", protected(self._order(paused=True))),
            web.post("/api/resume", protected(self._order(paused=False))),
            web.get("/api/token", protected(self._check_token)),
            *static_routes(),
        ]

    async def _show(self, request: web.Request) -> web.Response:
        token = await _form_token(request) if request.method == "POST" else ""
        status, code = self._page.status, 200
        may_read = self._access.may_read(request, token)
        if may_read:
            table = await self._tables.get_in_slices(id(status), lambda: tables(status))
        elif self._access.is_open:
            table = ASK
        else:
            table, code = _CLOSED, 403
        title = "loadline" if status is None or not may_read else status.agent
        refresh = may_read and request.method == "GET"
        return html(title, table, "live", orders=self._access.has_token, refresh=refresh, status=code)

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        model = self._model(request)
        frame = await self._page.frame(model)
        return await self._page.streams.serve(request, model, frame, self._access.may_read)

    def _answer(self, content: Callable[[str], bytes]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        answers: SharedAnswers[bytes] = SharedAnswers()

        async def answer(request: web.Request) -> web.StreamResponse:
            model = self._model(request)
            return json(await answers.get((id(self._page.status), model), partial(content, model)))

        return answer

    def _model(self, request: web.Request) -> str:
        """Return the model that a request names, or the first one."""
        if not self._access.may_read(request):
            raise web.HTTPUnauthorized(text="this page needs the agent's token\n")
        name = request.query.get("model", "")
        if len(name) > MODEL_CHARS_MAX:
            raise web.HTTPBadRequest(text=f"a name has at most {MODEL_CHARS_MAX} characters\n")
        status = self._page.status
        return name or (status.models[0].model if status is not None and status.models else "")

    def _order(self, *, paused: bool) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            self._check_order(request)
            if request.content_type != "application/json":  # a form of another site cannot send this type
                raise web.HTTPUnsupportedMediaType(text="send JSON\n")
            try:
                order = msgspec.json.decode(await _body(request), type=PageOrder)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise web.HTTPBadRequest(text=f"{error}\n") from error
            status = self._page.status
            if status is None or not status.leading:
                leader = "no agent" if status is None else status.leader or "no agent"
                raise web.HTTPConflict(text=f"this agent is a standby; {leader} leads\n")
            if all(model.model != order.model for model in status.models) and status.sharing is not None:
                raise web.HTTPConflict(text="another agent leads this model; its page can pause it\n")
            reply = await asyncio.shield(self._set_paused(order.model, "the live page", paused=paused))
            return json(msgspec.json.encode(reply), 200 if reply.accepted else 409)

        return answer

    async def _check_token(self, request: web.Request) -> web.StreamResponse:
        self._check_order(request)
        return json(b"{}")

    def _check_order(self, request: web.Request) -> None:
        if not self._access.has_token:
            raise web.HTTPForbidden(text="no token is configured: set token_file in [http]\n")
        if not self._access.may_order(request):
            raise web.HTTPUnauthorized(text="this is not the agent's token\n")


async def _form_token(request: web.Request) -> str:
    """Return the token of the page's form, without the parsers that the other types of forms need."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType(text="send the form of this page\n")
    form = parse_qs((await _body(request)).decode(errors="replace"))
    return form.get("token", [""])[-1]


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.RequestPayloadError as error:
        raise web.HTTPBadRequest(text="the body is not what `content-encoding` or its chunks say\n") from error
