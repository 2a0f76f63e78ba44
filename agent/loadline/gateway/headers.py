"""Headers that pass between clients and engines."""

from typing import Final

from multidict import CIMultiDict, MultiMapping

from loadline.gateway.errors import ApiError

# Those of RFC 9110, 7.6.1: they concern one connection.
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The gateway reads bodies: it decodes requests and answers, asks engines for plain ones, and lengths may change.
_OF_THE_BODY: Final = frozenset({"content-length", "content-encoding", "expect"})
_REQUEST_ONLY: Final = frozenset({"host", "accept-encoding"})
_RESPONSE_ONLY: Final = frozenset({"date", "server"})


def check(headers: MultiMapping[str]) -> None:
    """Check that an engine receives headers as they are.

    Raises:
        ApiError: A value is no UTF-8: the HTTP client would send it without its end.
    """
    for name, value in headers.items():
        try:
            value.encode()
        except UnicodeEncodeError:  # the server reads such a byte as half of a surrogate
            raise ApiError(400, f"the header {name!r} is no UTF-8; encode it, or leave it out") from None


def to_engine(headers: MultiMapping[str], via: str) -> CIMultiDict[str]:
    """Return the headers of a client's request that its engine receives.

    Args:
        headers: Headers of the client.
        via: This gateway in the header ``Via``, by which it recognises its own requests.
    """
    kept = _without(headers, _REQUEST_ONLY)
    kept["accept-encoding"] = "identity"
    kept.add("via", via)
    return kept


def to_client(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """Return the headers of an engine's answer that the client receives."""
    return _without(headers, _RESPONSE_ONLY)


def _without(headers: MultiMapping[str], others: frozenset[str]) -> CIMultiDict[str]:
    named = {token.strip().lower() for line in headers.getall("connection", ()) for token in line.split(",")}
    dropped = _HOP_BY_HOP | _OF_THE_BODY | others | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
