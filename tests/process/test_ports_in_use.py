"""Commands that listen on a port which another program uses."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

GOLDEN = Path(__file__).parents[1] / "golden" / "journal"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def failed(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "loadline", *command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    return done.stderr.splitlines()[-1]


def test_a_gateway_names_the_address_and_the_remedy(taken: int) -> None:
    unreachable = ("--nats", "nats://127.0.0.1:1", "--etcd", "http://127.0.0.1:1")
    error = failed("gateway", "--model", "m", "--listen", f"127.0.0.1:{taken}", *unreachable)
    assert error.startswith(f"loadline: --listen: cannot listen on 127.0.0.1:{taken} (")
    assert error.endswith("address already in use). Name another address or port.")


def test_the_page_of_a_journal_names_the_address_and_the_remedy(taken: int) -> None:
    error = failed("view", "--port", str(taken), str(GOLDEN))
    assert error.startswith(f"loadline: --port: cannot listen on 127.0.0.1:{taken} (")
    assert error.endswith("address already in use). Name another port, or leave it out.")


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_port_beyond_the_largest_is_refused(port: str) -> None:
    error = failed("view", "--port", port, str(GOLDEN))
    assert error == f"loadline view: error: argument --port: '{port}' is not a whole number from 0 to 65535"
