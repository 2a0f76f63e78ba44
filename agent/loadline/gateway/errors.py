"""Errors in the shape of the OpenAI API, which its clients show to their users."""

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from aiohttp import web

from loadline.errors import LoadlineError

ErrorType = Literal["invalid_request_error", "server_error", "overloaded_error"]


class ClientLeft(Exception):
    """The client closed its connection, or reads nothing of its answer."""


class ApiError(LoadlineError):
    """Refusal of a request, as its client receives it.

    Args:
        status: HTTP status.
        message: A sentence that names the cause.
        param: The field of the request at fault; empty: none.
        code: Word for programs; empty: none.
        retry_after_s: Time after which a repetition makes sense; 0: it makes none.
    """

    def __init__(self, status: int, message: str, *, param: str = "", code: str = "", retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """Return the error as JSON."""
        kind: ErrorType = "invalid_request_error"
        if self.status >= web.HTTPInternalServerError.status_code:
            kind = "overloaded_error" if self.retry_after_s else "server_error"
        fields = {"message": self.message, "type": kind, "param": self.param or None, "code": self.code or None}
        return msgspec.json.encode({"error": fields})

    def response(self) -> web.Response:
        """Return the error as an answer."""
        headers = {"retry-after": str(self.retry_after_s)} if self.retry_after_s else None
        return web.Response(status=self.status, body=self.body(), content_type="application/json", headers=headers)


@web.middleware
async def errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer errors in the API's shape, those of the HTTP server too."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPRequestEntityTooLarge as error:
        limit = request.app[BODY_BYTES_MAX]
        return ApiError(error.status, f"the body is larger than {limit} bytes").response()
    except web.HTTPException as error:
        return ApiError(error.status, f"{error.reason}: {request.method} {request.path}").response()


BODY_BYTES_MAX: web.AppKey[int] = web.AppKey("body_bytes_max", int)
"""Limit of bodies, which error messages name."""
