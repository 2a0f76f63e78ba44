"""Limit of the time that an engine has until the first byte of an answer.

No other engine is asked after it: the request has most likely waited for others, and each repetition is more work for
engines that are late already.
"""

from loadline.adapters.logs import bounded
from loadline.gateway.backends import Backend
from loadline.gateway.errors import ApiError
from loadline.gateway.model import ServedModel

_log = bounded("gateway")


def too_late(model: ServedModel, backend: Backend) -> ApiError:
    """Return the refusal of a request whose engine has sent nothing in time, and log it."""
    text = f"the engine sent nothing within {model.first_byte_s:g} s"
    _log.warning("first_byte_late", model=model.name, worker=backend.record.worker, detail=text)
    return ApiError(504, text, code="first_byte_timeout")
