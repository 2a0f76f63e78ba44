"""TLS contexts that read the system's certificates at their first connection."""

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from loadline.adapters.deferred_certificates import deferred
from tests.support.certificates import self_signed

REQUEST = """
import asyncio, ssl, sys
from loadline.adapters.deferred_certificates import deferred
with deferred():
    import aiohttp
from aiohttp import web

async def main():
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*sys.argv[1:])
    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=served)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            try:
                async with session.get(f"https://localhost:{port}/") as response:
                    print(response.status)
            except aiohttp.ClientConnectorCertificateError:
                print("refused")
    await runner.cleanup()

async def answer(request):
    return web.Response()

asyncio.run(main())
"""


@pytest.mark.parametrize(("trusted", "printed"), [(True, "200\n200\n"), (False, "refused\nrefused\n")])
def test_a_client_of_aiohttp_trusts_the_certificates_of_the_system(
    tmp_path: Path, *, trusted: bool, printed: str
) -> None:
    files, others = self_signed(tmp_path / "served"), self_signed(tmp_path / "others")
    system = files if trusted else others
    environment = {**os.environ, "SSL_CERT_FILE": str(system.certificate), "SSL_CERT_DIR": str(tmp_path / "none")}
    command = [sys.executable, "-c", REQUEST, str(files.certificate), str(files.key)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (printed, "")


def test_only_contexts_made_meanwhile_are_deferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(self_signed(tmp_path).certificate))
    with deferred():
        later = ssl.create_default_context()
    now = ssl.create_default_context()
    assert [context.cert_store_stats()["x509"] for context in (later, now)] == [0, 1]
    later.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    assert later.cert_store_stats()["x509"] == 1
    assert type(later) is ssl.SSLContext
