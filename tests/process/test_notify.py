"""Notifications of the service manager through a real socket."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from loadline.adapters.notify import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_receives_readiness_and_status(tmp_path: Path, abstract: bool) -> None:  # noqa: FBT001
    address = f"@loadline-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        manager.settimeout(10)
        notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"})
        assert notifier.watchdog_interval_s == 15
        notifier.ready()
        notifier.alive()
        notifier.stopping()
        messages = [manager.recv(1_000).decode() for _ in range(3)]
    assert messages == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_missing_socket_is_ignored(tmp_path: Path) -> None:
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def test_a_full_socket_does_not_block(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.setblocking(False)  # noqa: FBT003 - the name of the method says it
        notifier = Notifier({"NOTIFY_SOCKET": address})
        for _ in range(10_000):
            notifier.alive()
        received = 0
        with contextlib.suppress(BlockingIOError):
            while manager.recv(1_000):
                received += 1
    assert 0 < received < 10_000, "the socket was full"


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}],
)
def test_a_watchdog_for_another_process_is_ignored(environment: dict[str, str]) -> None:
    assert Notifier(environment).watchdog_interval_s == 0
