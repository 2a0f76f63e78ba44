"""etcd's JSON gateway at one endpoint, through etcd3-py.

Of the library only ``AioClient.call_rpc(..., encode=False, raw=True)`` is used. Its constructor would ask for the
version of the server with a blocking request, its TLS does not check host names, and its models, leases and watches do
not work on today's aiohttp.
"""

import ipaddress
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from etcd3.aio_client import AioClient

from loadline.config import EtcdKnobs
from loadline.errors import ConfigError

_PORT = 2379


class EtcdGateway(AioClient):  # type: ignore[misc]  # the library has no types
    """The library's client for one endpoint; make it inside the loop.

    Args:
        url: The endpoint.
        tls: For https; None where there is none.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        # Past AioClient's own constructor, which makes a TLS context that does not check host names.
        super(AioClient, self).__init__(
            host=f"[{host}]" if ":" in host else host, port=parts.port or _PORT, protocol=parts.scheme
        )
        # No limit on connections: a watch holds one for ever, so that a limit would end in everybody waiting.
        connector = aiohttp.TCPConnector(limit=0, ssl=tls or True, socket_factory=_socket)
        self.session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    def post(self, path: str, data: bytes, token: str, bounds: aiohttp.ClientTimeout) -> Any:
        """The response, as an asynchronous context manager."""
        headers = {"authorization": token} if token else {}
        return self.call_rpc(path, data, encode=False, raw=True, timeout=bounds, headers=headers)

    def _retrieve_version(self) -> None:
        """Not asked: everything here is in all versions since 3.4."""

    def _verify_version(self) -> None:
        """See ``_retrieve_version``."""

    def _get_prefix(self) -> None:
        self.api_prefix = "/v3"


def _socket(address: Any) -> socket.socket:
    """A socket on which a peer that vanished without a word is noticed after 5 + 3 * 2 s, even if nothing is sent."""
    made = socket.socket(family=address[0], type=address[1], proto=address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return made


def check_endpoint(place: str, url: str, *, insecure: bool) -> None:
    """Refuse what is no URL of etcd, and plain http to another host unless it is allowed.

    Raises:
        ConfigError: It is one of these.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise ConfigError(place, "this is no URL of etcd", "Write it like https://etcd.example:2379, without a user.")
    if parts.scheme == "http" and not insecure and not _is_loopback(parts.hostname):
        raise ConfigError(
            place, f"plain http to {parts.hostname} shows keys and passwords", "Use https, or set insecure = true."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_context(knobs: EtcdKnobs) -> ssl.SSLContext | None:
    """What https needs, with certificate and host name checked; None where all endpoints are http.

    Raises:
        ConfigError: A file cannot be used.
    """
    if not any(url.startswith("https://") for url in knobs.endpoints):
        return None
    try:
        context = ssl.create_default_context(cafile=knobs.ca_file or None)
        if knobs.cert_file:
            context.load_cert_chain(knobs.cert_file, knobs.key_file or None)
    except OSError as error:
        files = ", ".join(filter(None, (knobs.ca_file, knobs.cert_file, knobs.key_file)))
        raise ConfigError("etcd.ca_file", f"{files} cannot be used: {error}", "Name PEM files.") from error
    return context
