"""Embedded servers: they keep their port and data, and never outlive their parent."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadline.adapters.parent_death import ending_with_parent
from loadline.errors import LoadlineError
from loadline.rig.rig import Rig
from loadline.rig.server_processes import EtcdServer, NatsServer, Server
from tests.support.agents import config
from tests.waiting import until_true

pytestmark = pytest.mark.process

KINDS: list[Callable[[Path], Server]] = [NatsServer, EtcdServer]


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_server_keeps_its_port(kind: Callable[[Path], Server], tmp_path: Path) -> None:
    with kind(tmp_path) as server:
        url, pid = server.url, server.pid
        server.restart()
        assert (server.url, server.alive) == (url, True)
        assert server.pid != pid
        server.kill()
        assert not server.alive
        server.start()
        assert server.url == url
        server.pause()
    assert not server.alive
    assert server.log.exists()


def test_a_server_can_be_started_inside_a_loop(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    asyncio.run(server.start_async())
    assert server.alive
    server.stop()


def test_processes_choose_different_ports_that_no_other_socket_is_given() -> None:
    program = (
        "from loadline.rig.server_processes import free_port\n"
        "print(*(free_port() for _ in range(150)), flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-c", program]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(3)
        ]
        chosen = [int(port) for one in started if one.stdout is not None for port in one.stdout.readline().split()]
        for one in started:
            one.communicate("\n")
    assert len(chosen) == len(set(chosen)) == 450
    assert max(chosen) < 32_768  # from there on, Linux gives ports to sockets that name none


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_no_server_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, time\n"
        "from loadline.rig.server_processes import EtcdServer, NatsServer\n"
        "servers = [kind(pathlib.Path(sys.argv[1]) / kind.name) for kind in (NatsServer, EtcdServer)]\n"
        "[server.start() for server in servers]\n"
        "print(*(server.pid for server in servers), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
        os.kill(parent.pid, signal.SIGKILL)
    until_true(lambda: not any(is_running(pid) for pid in pids))


def test_no_python_runs_in_the_forked_child_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would free what the threads of C libraries hold, such as those of an open gRPC channel, and crash."""
    start = subprocess.Popen.__init__
    started = []

    def watched(self: "subprocess.Popen[bytes]", *arguments: Any, **options: Any) -> None:
        started.append(options.get("preexec_fn"))
        start(self, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", watched)
    with Rig(tmp_path) as rig:
        agent = rig.agent(config(rig, "a"), "a")
        agent.wait_ready()
        assert agent.stop() == 0
    assert started
    assert not any(started)


def test_a_program_that_ends_with_its_parent_ignores_no_other_signal() -> None:
    command = ["grep", "SigIgn", "/proc/self/status"]
    found = [
        subprocess.run(one, capture_output=True, text=True, check=True).stdout
        for one in (command, ending_with_parent(command))
    ]
    assert found[0] == found[1], "under nohup, every program ignores SIGHUP"


def test_the_error_of_a_server_that_cannot_start_names_its_log(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, config="this is { no configuration")
    with pytest.raises(LoadlineError, match=str(server.log)):
        server.start()
    assert not server.alive
    assert "Parse error on line 1" in server.log.read_text()


def test_the_error_of_a_server_on_a_full_disk_names_the_lack_of_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=3 * 2**20))
    with pytest.raises(LoadlineError, match="Its disk has 3 MiB left, and 256 are needed"):
        NatsServer(tmp_path, config="this is { no configuration").start()


def test_the_error_of_a_missing_server_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(LoadlineError, match="put it in PATH"):
        NatsServer(tmp_path).start()
