"""TLS to real servers: the certificate and the name in it are checked."""

import asyncio
import contextlib
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.errors import StoreUnavailable
from loadline.rig.servers import EtcdServer, NatsServer
from tests.support.certificates import self_signed

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a self-signed certificate and its key."""
    files = self_signed(tmp_path_factory.mktemp("tls"))
    return files.certificate, files.key


class TlsEtcd(EtcdServer):
    """etcd that speaks https to clients."""

    def __init__(self, directory: Path, certificate: Path, key: Path) -> None:
        super().__init__(directory)
        self._files = certificate, key

    @property
    def url(self) -> str:
        return super().url.replace("http://", "https://")

    def _command(self) -> list[str]:
        certificate, key = self._files
        return [*super()._command(), f"--cert-file={certificate}", f"--key-file={key}"]

    def _ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._files[0]))
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            url = f"https://localhost:{self.port}/health"
            with urllib.request.urlopen(url, context=context, timeout=1) as answer:
                return b'"true"' in answer.read()
        return False


def test_nats(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    ca, key = certificate
    config = f'tls {{ cert_file: "{ca}", key_file: "{key}" }}'

    async def last_error(url: str, ca_file: str) -> str:
        bus = NatsBus(NatsKnobs(servers=(url,), ca_file=ca_file), name="tls")
        await bus.connect(lambda _connected: None)
        try:
            if bus.connected:
                await bus.publish("a", b"")
            return bus.last_error
        finally:
            await bus.close()

    async def scenario(port: int) -> None:
        assert await last_error(f"tls://localhost:{port}", str(ca)) == ""
        assert "certificate" in (await last_error(f"tls://127.0.0.1:{port}", str(ca))).lower()
        assert "certificate" in (await last_error(f"tls://localhost:{port}", "")).lower()

    with NatsServer(tmp_path, config) as server:
        asyncio.run(scenario(server.port))


def test_nats_with_a_client_certificate(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    ca, key = certificate
    config = f'tls {{ cert_file: "{ca}", key_file: "{key}", ca_file: "{ca}", verify: true }}'

    async def scenario(port: int) -> None:
        anonymous = NatsKnobs(servers=(f"tls://localhost:{port}",), ca_file=str(ca))
        known = msgspec.structs.replace(anonymous, cert_file=str(ca), key_file=str(key))
        for knobs, connects in ((known, True), (anonymous, False)):
            bus = NatsBus(knobs, name="tls")
            await bus.connect(lambda _connected: None)
            try:
                assert bus.connected == connects, bus.last_error
                assert connects or bus.last_error
            finally:
                await bus.close()

    with NatsServer(tmp_path, config) as server:
        asyncio.run(scenario(server.port))


def test_etcd(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    ca, key = certificate

    async def read(url: str, ca_file: str) -> int:
        store = EtcdStore(EtcdKnobs(endpoints=(url,), ca_file=ca_file))
        try:
            return (await store.read("a")).revision
        finally:
            await store.close()

    async def scenario(port: int) -> None:
        assert await read(f"https://localhost:{port}", str(ca)) > 0
        for url, ca_file in ((f"https://127.0.0.1:{port}", str(ca)), (f"https://localhost:{port}", "")):
            with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
                await read(url, ca_file)

    with TlsEtcd(tmp_path, ca, key) as server:
        asyncio.run(scenario(server.port))
