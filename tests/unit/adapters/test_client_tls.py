"""TLS of clients, with real handshakes, while their files are replaced."""

import asyncio
import os
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadline.adapters.client_tls import ClientTls
from loadline.adapters.nats_logins import tls_context
from loadline.errors import ConfigError
from loadline.servers import NatsKnobs
from tests.support.certificates import CertificateFiles, encrypt_key, replace_file, self_signed


@asynccontextmanager
async def server(own: CertificateFiles, trusted: CertificateFiles | None = None) -> AsyncIterator[int]:
    """Run a server that answers each connection with a byte; it asks for certificates if it trusts somebody."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own.certificate, own.key)
    if trusted is not None:
        context.load_verify_locations(trusted.certificate)
        context.verify_mode = ssl.CERT_REQUIRED

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b".")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "localhost", 0, ssl=context) as started:
        yield started.sockets[0].getsockname()[1]


async def connects(port: int, tls: ClientTls) -> bool:
    try:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=tls.context())
        answer = await reader.read(1)
        writer.close()
    except (ssl.SSLError, ConnectionError):
        return False
    return answer == b"."


def test_a_ca_that_was_replaced_is_no_longer_trusted(tmp_path: Path) -> None:
    former, later = self_signed(tmp_path / "former"), self_signed(tmp_path / "later")
    ca_file = tmp_path / "ca.pem"
    replace_file(ca_file, former.certificate.read_bytes())

    async def scenario() -> None:
        tls = ClientTls("etcd.", str(ca_file))
        async with server(former) as of_former, server(later) as of_later:
            assert [await connects(port, tls) for port in (of_former, of_later)] == [True, False]
            replace_file(ca_file, later.certificate.read_bytes())
            assert [await connects(port, tls) for port in (of_former, of_later)] == [False, True]
            replace_file(ca_file, b"half of a ")
            assert [await connects(port, tls) for port in (of_former, of_later)] == [False, True]
            ca_file.unlink()
            assert [await connects(port, tls) for port in (of_former, of_later)] == [False, True]

    asyncio.run(scenario())


def test_the_former_client_certificate_stays_until_certificate_and_key_are_replaced(tmp_path: Path) -> None:
    host, former, later = (self_signed(tmp_path / name) for name in ("host", "former", "later"))
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    replace_file(cert_file, former.certificate.read_bytes())
    replace_file(key_file, former.key.read_bytes())

    async def scenario() -> None:
        tls = ClientTls("etcd.", str(host.certificate), str(cert_file), str(key_file))
        async with server(host, former) as of_former, server(host, later) as of_later:
            assert [await connects(port, tls) for port in (of_former, of_later)] == [True, False]
            replace_file(cert_file, later.certificate.read_bytes())
            assert [await connects(port, tls) for port in (of_former, of_later)] == [True, False]
            replace_file(key_file, later.key.read_bytes())
            assert [await connects(port, tls) for port in (of_former, of_later)] == [False, True]

    asyncio.run(scenario())


def test_files_that_become_usable_later_are_read_though_they_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca_file = tmp_path / "ca.pem"
    replace_file(ca_file, self_signed(tmp_path / "former").certificate.read_bytes())
    tls = ClientTls("", str(ca_file))
    former, now_s, loads = tls.context(), [0.0], 0
    real = ssl.create_default_context

    def load(**_files: object) -> ssl.SSLContext:
        nonlocal loads
        loads += 1
        if now_s[0] < 15.0:
            raise OSError(24, "too many open files")
        return real()

    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(ssl, "create_default_context", load)
    replace_file(ca_file, self_signed(tmp_path / "later").certificate.read_bytes())
    found = [tls.context() for _ in range(3)]
    assert (found, loads) == ([former] * 3, 1)
    now_s[0] = 11.0
    assert (tls.context(), loads) == (former, 2)
    ca_file.chmod(0o640)
    assert (tls.context(), loads) == (former, 3), "its owner or mode was changed"
    now_s[0] = 22.0
    later = tls.context()
    assert later is not former
    assert tls.context() is later


def test_the_context_stays_while_no_file_changes(tmp_path: Path) -> None:
    tls = ClientTls("", str(self_signed(tmp_path).certificate))
    assert tls.context() is tls.context(), "another one would open a connection for each request"


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^ca_file: /nowhere cannot be used: "):
        ClientTls("", "/nowhere")
    (tmp_path / "ca.pem").write_text("no certificate", "utf-8")
    with pytest.raises(ConfigError, match=r"ca\.pem cannot be used: "):
        ClientTls("", str(tmp_path / "ca.pem"))


@pytest.mark.parametrize("name", ["fifo", "nul\0"])
@pytest.mark.parametrize("key", ["ca_file", "cert_file", "key_file"])
def test_a_name_of_no_regular_file_is_named_with_its_key(key: str, name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    own = self_signed(tmp_path)
    files = {"ca_file": own.certificate, "cert_file": own.certificate, "key_file": own.key} | {key: tmp_path / name}
    ca_file, cert_file, key_file = map(str, files.values())
    with pytest.raises(ConfigError, match=f"^etcd.{key}: .* cannot be used: "):
        ClientTls("etcd.", ca_file, cert_file, key_file)
    knobs = NatsKnobs(ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    with pytest.raises(ConfigError, match=f"^nats.{key}: .* cannot be used: "):
        tls_context(knobs)


def test_a_key_with_a_passphrase_is_refused_and_nobody_asked_for_it(tmp_path: Path) -> None:
    own = self_signed(tmp_path)
    encrypt_key(own.key)
    problem = f"nats.key_file: {own.key} has a passphrase. Name a file with the key in plain text."
    with pytest.raises(ConfigError, match=f"^{re.escape(problem)}$"):
        tls_context(NatsKnobs(cert_file=str(own.certificate), key_file=str(own.key)))


def test_a_key_that_cannot_be_used_is_named_with_its_certificate(tmp_path: Path) -> None:
    own, other = self_signed(tmp_path / "own"), self_signed(tmp_path / "other")
    files = f"{own.certificate} with {other.key}"
    with pytest.raises(ConfigError, match=f"^etcd.cert_file: {re.escape(files)} cannot be used: .*mismatch"):
        ClientTls("etcd.", "", str(own.certificate), str(other.key))
