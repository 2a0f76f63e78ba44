"""Client of etcd's JSON gateway at one endpoint, on etcd3-py.

Only ``AioClient.call_rpc(..., encode=False, raw=True)`` of the library is used. Its constructor requests the server's
version with a blocking call, its TLS does not check host names, and its models, leases and watches fail on current
aiohttp.
"""

import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from loadline.adapters.client_tls import ClientTls
from loadline.adapters.hidden_module import replaced
from loadline.errors import ConfigError
from loadline.servers import is_loopback

# The library's other client, which blocks, imports requests: 5 MB and 35 ms of each program. Its check of the server's
# version, which is skipped here, imports semantic_version: 6 ms.
with (
    replaced("semantic_version"),
    replaced("requests", ConnectionError=ConnectionError),
    replaced("requests.exceptions", ChunkedEncodingError=ConnectionError),
):
    from etcd3.aio_client import AioClient

_PORT = 2379


class EtcdGateway(AioClient):  # type: ignore[misc]  # the library has no types
    """The library's client for one endpoint; construct it inside the event loop.

    Args:
        url: The endpoint.
        tls: Certificates for https; None for http.
    """

    def __init__(self, url: str, tls: ClientTls | None) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        # Skips AioClient's constructor, which makes a TLS context that does not check host names.
        super(AioClient, self).__init__(
            host=f"[{host}]" if ":" in host else host, port=parts.port or _PORT, protocol=parts.scheme
        )
        self._tls = tls
        # No limit on connections: each watch holds one for ever, so a limit would block all calls in the end.
        connector = aiohttp.TCPConnector(limit=0, socket_factory=_socket)
        self.session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    def post(self, path: str, data: bytes, token: str, bounds: aiohttp.ClientTimeout) -> Any:
        """Send a request; returns the response as an asynchronous context manager."""
        headers = {"authorization": token} if token else {}
        options = {"timeout": bounds, "headers": headers, "ssl": True if self._tls is None else self._tls.context()}
        return self.call_rpc(path, data, encode=False, raw=True, **options)

    def _retrieve_version(self) -> None:
        """Skip the request: all calls here exist in every version since 3.4."""

    def _verify_version(self) -> None:
        """Skip the check; see ``_retrieve_version``."""

    def _get_prefix(self) -> None:
        self.api_prefix = "/v3"


def _socket(address: Any) -> socket.socket:
    """Return a socket with TCP keepalive: a peer that vanished is detected after 5 + 3 * 2 s, even without traffic."""
    created = socket.socket(family=address[0], type=address[1], proto=address[2])
    created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    created.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    created.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    created.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return created


def check_endpoint(place: str, url: str, *, insecure: bool) -> None:
    """Check an endpoint's URL; plain http to another host needs ``insecure``.

    Raises:
        ConfigError: The URL is not valid or not allowed.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise ConfigError(place, "this is no URL of etcd", "Write it like https://etcd.example:2379, without a user.")
    if parts.scheme == "http" and not insecure and not is_loopback(url):
        problem = f"plain http to {parts.hostname} shows keys and passwords"
        raise ConfigError(place, problem, "Use https, or set insecure = true in [etcd].")
