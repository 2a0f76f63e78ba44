"""TLS to real servers: the certificate and the name in it are checked."""

import asyncio
import contextlib
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.errors import StoreDenied, StoreUnavailable
from loadline.rig.server_processes import EtcdServer, NatsServer
from tests.support.certificates import CertificateFiles, self_signed
from tests.support.secured import etcd_login, etcdctl, secure_etcd
from tests.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a self-signed certificate and its key."""
    files = self_signed(tmp_path_factory.mktemp("tls"))
    return files.certificate, files.key


class TlsEtcd(EtcdServer):
    """etcd that speaks https to clients."""

    def __init__(self, directory: Path, certificate: Path, key: Path, *options: str) -> None:
        super().__init__(directory)
        self._files = certificate, key
        self._tls_options = options

    @property
    def url(self) -> str:
        return super().url.replace("http://", "https://")

    def _command(self) -> list[str]:
        certificate, key = self._files
        return [*super()._command(), f"--cert-file={certificate}", f"--key-file={key}", *self._tls_options]

    def is_ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._files[0]))
        context.load_cert_chain(*self._files)
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
        known = replace(anonymous, cert_file=str(ca), key_file=str(key))
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


def replaced(files: CertificateFiles, folder: Path) -> tuple[str, str]:
    """Put a certificate and its key into the place of others."""
    folder.mkdir(exist_ok=True)
    for name, source in (("cert.pem", files.certificate), ("key.pem", files.key)):
        shutil.copy(source, folder / "new")
        (folder / "new").rename(folder / name)
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_nats_sees_a_client_certificate_that_was_replaced(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    ca, key = certificate
    config = f'tls {{ cert_file: "{ca}", key_file: "{key}", ca_file: "{ca}", verify: true }}'

    async def scenario(port: int) -> None:
        cert_file, key_file = replaced(self_signed(tmp_path / "unknown"), tmp_path / "own")
        url = f"tls://localhost:{port}"
        bus = NatsBus(NatsKnobs(servers=(url,), ca_file=str(ca), cert_file=cert_file, key_file=key_file), name="tls")
        try:
            await bus.connect(lambda _connected: None)
            assert not bus.connected
            replaced(CertificateFiles(ca, key), tmp_path / "own")
            await until(lambda: bus.connected, "a connection with the new certificate")
        finally:
            await bus.close()

    with NatsServer(tmp_path / "server", config) as server:
        asyncio.run(scenario(server.port))


def test_etcd_sees_a_client_certificate_that_was_replaced(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    ca, key = certificate

    async def scenario(port: int) -> None:
        url = f"https://localhost:{port}"
        cert_file, key_file = replaced(self_signed(tmp_path / "unknown"), tmp_path / "own")
        store = EtcdStore(EtcdKnobs(endpoints=(url,), ca_file=str(ca), cert_file=cert_file, key_file=key_file))
        anonymous = EtcdStore(EtcdKnobs(endpoints=(url,), ca_file=str(ca)))
        try:
            for one in (store, anonymous):
                with pytest.raises(StoreUnavailable):
                    await one.read("a")
            replaced(CertificateFiles(ca, key), tmp_path / "own")
            assert (await store.read("a")).revision > 0
            (tmp_path / "own" / "cert.pem").write_text("half of a ", "utf-8")
            assert (await store.read("a")).revision > 0, "the former certificate stays"
        finally:
            await store.close()
            await anonymous.close()

    with TlsEtcd(tmp_path / "etcd", ca, key, "--client-cert-auth", f"--trusted-ca-file={ca}") as server:
        asyncio.run(scenario(server.port))


def new_password(file: str) -> None:
    Path(file).write_text("n3w\n", "utf-8")


def test_etcd_with_a_password_over_tls_takes_a_new_password(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    ca, key = certificate

    async def scenario(server: TlsEtcd) -> None:
        knobs = replace(etcd_login(server, "loadline-agent", tmp_path / "own"), ca_file=str(ca))
        knobs = replace(knobs, endpoints=(f"https://localhost:{server.port}",))
        store, stranger = EtcdStore(knobs), EtcdStore(knobs)
        try:
            await store.grant(10)
            etcdctl(server, ca, "user", "passwd", "loadline-agent", "--interactive=false", text="n3w\n")
            with pytest.raises(StoreDenied):
                await stranger.grant(10)
            new_password(knobs.password_file)
            etcdctl(server, ca, "auth", "disable")  # ends all tokens
            etcdctl(server, ca, "auth", "enable", login=False)
            assert await store.grant(10)
        finally:
            await store.close()
            await stranger.close()

    with TlsEtcd(tmp_path / "etcd", ca, key) as server:
        secure_etcd(server, tmp_path / "passwords", "default", "llama", ca=ca)
        asyncio.run(scenario(server))
