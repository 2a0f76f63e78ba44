"""Static files of the page, its HTML, and the headers that protect it."""

import hashlib
from collections.abc import Awaitable, Callable
from html import escape
from pathlib import Path
from string import Template
from typing import Final

from aiohttp import web
from aiohttp.typedefs import LooseHeaders

STATIC: Final = Path(__file__).parent / "static"
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer: scripts and styles come from this server only, and no other site may embed the page."""
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_TEMPLATE: Final = Template((STATIC / "index.html").read_text("utf-8"))

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def static_routes() -> list[web.RouteDef]:
    """Return a route for each file, with its content in memory."""
    return [_static_route(path) for path in sorted(STATIC.rglob("*")) if path.suffix in _TYPES]


def protected(handler: Handler) -> Handler:
    """Add the headers to the answers of a handler, errors included."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    return answer


def html(title: str, table: str, mode: str, *, orders: bool, refresh: bool, status: int = 200) -> web.Response:
    """Return the page.

    Args:
        title: Name of the agent or journal.
        table: HTML for browsers without JavaScript.
        mode: ``live`` or ``journal``.
        orders: True if models can be paused by the token.
        refresh: True if a browser without JavaScript loads the page again every 5 s.
        status: HTTP status.
    """
    text = _TEMPLATE.substitute(
        title=escape(title),
        table=table,
        mode=mode,
        orders="yes" if orders else "no",
        refresh='<noscript><meta http-equiv="refresh" content="5"></noscript>' if refresh else "",
    )
    return web.Response(text=text, content_type="text/html", status=status, headers={"cache-control": "no-store"})


def json(body: bytes, status: int = 200) -> web.Response:
    """Return a response with JSON that no cache may store."""
    return web.Response(
        body=body, content_type="application/json", status=status, headers={"cache-control": "no-store"}
    )


def _static_route(path: Path) -> web.RouteDef:
    body, kind = path.read_bytes(), _TYPES[path.suffix]
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers: LooseHeaders = {"cache-control": "no-cache", "etag": tag}

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("if-none-match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return web.get(f"/static/{path.relative_to(STATIC).as_posix()}", protected(answer))
