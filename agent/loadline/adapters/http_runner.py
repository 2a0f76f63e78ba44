"""Runner of the programs' HTTP servers. A client's mistake is one line of the log; other errors have a traceback."""

import logging
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from aiohttp.web_protocol import RequestPayloadError

from loadline.adapters import logs

_DETAIL_CHARS_MAX: Final = 200
_MISTAKES: Final = (HttpProcessingError, RequestPayloadError)

_log = logs.bounded("http")


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """Logger of aiohttp, which logs a traceback for each request that is no HTTP."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **kwargs: Any) -> None:
        if not isinstance(exc_info, _MISTAKES):
            super().exception(msg, *args, exc_info=exc_info, **kwargs)
            return
        detail = " ".join(str(exc_info).split())[:_DETAIL_CHARS_MAX]
        client = str(args[0]) if args else ""
        _log.warning("bad_request", reason=type(exc_info).__name__, client=client, detail=detail)


async def _close_if_pipelined(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after this answer if further requests came with it.

    Clients repeat those (RFC 9112, 9.3.2), and hardly one sends any before it has an answer. 16 KiB may hold 468
    requests, which would take 37 ms.
    """
    if getattr(request.protocol, "_messages", ()):  # aiohttp does not tell, and may rename it
        response.force_close()
        response.headers[hdrs.CONNECTION] = "close"


def http_runner(application: web.Application, **limits: Any) -> web.AppRunner:
    """Return the runner of a server, without an access log; ``limits`` are those of ``web.AppRunner``."""
    application.on_response_prepare.append(_close_if_pipelined)
    return web.AppRunner(application, access_log=None, logger=_ServerLog(server_logger), **limits)
