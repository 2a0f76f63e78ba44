"""Errors in the answers of engines. Pure."""

from typing import Any, Final

_REFUSALS: Final = frozenset({400, 413, 422})
"""Statuses that blame the request; 401 is the engine's own login, and with 408 and 499 it gave up."""
_OTHER_MODEL: Final = (b"does not exist", b"model_not_found", b"NotFoundError")
"""Words of vLLM, and of OpenAI's API, about a model that they do not serve."""


def is_of_other_model(status: int, body: bytes) -> bool:
    """Return True if an answer is that of an engine which serves another model.

    It was started at the address of a worker that was killed, and whose entry has not expired.
    """
    return status == 404 and any(words in body for words in _OTHER_MODEL)  # noqa: PLR2004


def refused_status(error: Any) -> int | None:
    """Return the status by which an error object says that the request is at fault; None: it says nothing such.

    Engines write it as ``code`` into answers, and into streams, that have begun with 200. By 400 some versions of vLLM
    also tell that they have failed.
    """
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and code in _REFUSALS else None
