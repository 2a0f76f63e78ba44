"""URLs and logins of servers, as programs are configured with them. Clients import this, no agent's configuration.

The latter takes 0.6 s and 20 MB to import, since its sections are defined with the planners.
"""

import ipaddress
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from loadline.errors import ConfigError

Positive = Annotated[int, Meta(ge=1)]
PathText = Annotated[str, Meta(pattern=r"^[^\x00]*\Z")]
"""Text that may name a file or a folder, or be an argument of a program: one without a NUL."""


class Knobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the sections of a configuration; unknown keys are errors."""


class NatsKnobs(Knobs, frozen=True):
    """Servers of NATS, and login."""

    servers: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="URLs; tls:// for TLS. Passwords are refused here: use the files below."),
    ] = ("nats://127.0.0.1:4222",)
    user: Annotated[str, Meta(description="User name, with password_file.")] = ""
    password_file: Annotated[str, Meta(description="File with the password.")] = ""
    credentials_file: Annotated[str, Meta(description="A .creds file (JWT and nkey).")] = ""
    ca_file: Annotated[str, Meta(description="CA bundle for TLS; empty: the system's.")] = ""
    cert_file: Annotated[str, Meta(description="Client certificate for TLS, with key_file.")] = ""
    key_file: Annotated[str, Meta(description="Key of the client certificate, without a passphrase.")] = ""
    inbox_prefix: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_-]+\Z", description="First token of the subjects on which replies arrive.")
    ] = "_INBOX"
    frame_bytes_max: Annotated[
        Positive, Meta(description="Maximum size of a frame (a received message); larger ones are dropped unparsed.")
    ] = 262_144


class EtcdKnobs(Knobs, frozen=True):
    """Members of etcd, and login."""

    endpoints: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="URLs of the members; the next one is tried when one does not answer."),
    ] = ("http://127.0.0.1:2379",)
    user: Annotated[str, Meta(description="User name, with password_file.")] = ""
    password_file: Annotated[str, Meta(description="File with the password.")] = ""
    ca_file: Annotated[str, Meta(description="CA bundle for https.")] = ""
    cert_file: Annotated[str, Meta(description="Client certificate for https.")] = ""
    key_file: Annotated[str, Meta(description="Key of the client certificate, without a passphrase.")] = ""
    timeout_ms: Annotated[Positive, Meta(description="Time limit of a single call.")] = 2_000
    insecure: Annotated[bool, Meta(description="Allow http:// to hosts other than this one.")] = False


def check_servers(urls: Iterable[str], place: str, schemes: tuple[str, ...]) -> None:
    """Check a list of URLs as ``check_server`` does.

    Raises:
        ConfigError: A value is not a URL of these schemes, or contains a login.
    """
    for index, url in enumerate(urls):
        check_server(url, f"{place}[{index}]", schemes)


def check_server(url: str, place: str, schemes: tuple[str, ...]) -> None:
    """Check the URL of a server.

    Raises:
        ConfigError: It is not a URL of these schemes, or contains a login.
    """
    form = f"Write {schemes[0]}://host:port or {schemes[1]}://host:port."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(place, "is not a URL", form) from error
    # Errors never quote a refused URL, since it may contain a password.
    if "@" in url or parts.query or parts.fragment:
        remedy = "Use user and password_file, or a credentials file, since URLs are logged."
        raise ConfigError(place, "contains a login", remedy)
    if parts.scheme not in schemes or not host or any(map(str.isspace, url)):
        raise ConfigError(place, f"is not {schemes[0]}:// or {schemes[1]}://", form)


def check_logins(nats: NatsKnobs, etcd: EtcdKnobs, sections: tuple[str, str] = ("nats", "etcd")) -> None:
    """Check that logins are whole, and that none crosses the network in plain text.

    Args:
        nats: Servers and login of NATS.
        etcd: Endpoints and login of etcd.
        sections: Names of their sections in the file.

    Raises:
        ConfigError: A part is missing, or two exclude each other.
    """
    for section, knobs in ((sections[0], nats), (sections[1], etcd)):
        _check_pair(section, knobs, "user", "password_file")
        _check_pair(section, knobs, "cert_file", "key_file")
    if nats.user and nats.credentials_file:
        raise ConfigError(f"{sections[0]}.credentials_file", "and user are both set", "Remove one of them.")
    for index, url in enumerate(etcd.endpoints):
        if url.startswith("http://") and not is_loopback(url) and not etcd.insecure:
            remedy = f"Use https://, or set {sections[1]}.insecure = true if the network is trusted."
            raise ConfigError(f"{sections[1]}.endpoints[{index}]", "is not encrypted", remedy)


def check_certificate_use(nats: NatsKnobs, section: str = "nats") -> None:
    """Check that a server which a client certificate is for cannot be one without TLS.

    Raises:
        ConfigError: The URL of a server permits that.
    """
    if nats.cert_file and not all(url.startswith("tls://") for url in nats.servers):
        raise ConfigError(
            f"{section}.cert_file", "is set, and a server has no tls:// URL", "Use tls:// for all servers."
        )


def _check_pair(section: str, knobs: NatsKnobs | EtcdKnobs, one: str, other: str) -> None:
    missing = [key for key in (one, other) if not getattr(knobs, key)]
    if len(missing) == 1:
        present = other if missing[0] == one else one
        raise ConfigError(
            f"{section}.{missing[0]}",
            f"is missing while {present} is set",
            f"Set {one} and {other} together in [{section}].",
            cause=f"{section}.{present}",
        )


def is_loopback(url: str) -> bool:
    """Return True for a URL whose host only its own machine can reach."""
    return is_loopback_host(urlsplit(url).hostname or "")


def is_loopback_host(host: str) -> bool:
    """Return True for a host, or an address, that only its own machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
