"""HTTP handlers of a journal's page, on loopback only."""

import asyncio

import msgspec
from aiohttp import web

from loadline.errors import JournalError
from loadline.web.access import Access
from loadline.web.journal_view import JournalView
from loadline.web.site import html, json, protected, static_routes

_NO_JAVASCRIPT = "<p>The slider needs JavaScript; `loadline explain --journal PATH` does not.</p>"


class JournalHandlers:
    """Handlers of a journal's page.

    Args:
        view: Frames of the journal.
        name: Name of the journal, for the title.
    """

    def __init__(self, view: JournalView, name: str) -> None:
        self._view = view
        self._name = name
        self._access = Access("127.0.0.1", "")

    def routes(self) -> list[web.RouteDef]:
        """Return all routes of the page."""
        return [
            web.get("/", protected(self._show)),
            web.get("/api/journal", protected(self._span)),
            web.get("/api/at", protected(self._at)),
            *static_routes(),
        ]

    async def _show(self, request: web.Request) -> web.Response:
        self._check(request)
        return html(self._name, _NO_JAVASCRIPT, "journal", orders=False, refresh=False)

    async def _span(self, request: web.Request) -> web.Response:
        self._check(request)
        return json(msgspec.json.encode(self._view.span))

    async def _at(self, request: web.Request) -> web.Response:
        self._check(request)
        try:
            at_ms = int(request.query.get("ms", ""))
        except ValueError as error:
            raise web.HTTPBadRequest(text="ms is not a time\n") from error
        try:
            frame = await asyncio.to_thread(self._view.frame, at_ms, request.query.get("model", ""))
        except JournalError as error:
            raise web.HTTPUnprocessableEntity(text=f"{error}\n") from error
        return json(msgspec.json.encode(frame))

    def _check(self, request: web.Request) -> None:
        if not self._access.may_read(request):
            raise web.HTTPForbidden(text="open this page under 127.0.0.1 or localhost\n")
