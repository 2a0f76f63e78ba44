"""GPUs, ports and slots that the local scaler gives its workers."""

import socket
from pathlib import Path

import pytest

from loadline.errors import ConfigError
from loadline.scalers.local.config import read
from loadline.scalers.local.host import Allotment, HostResources, installed_gpus


def test_without_a_free_port_at_the_end_of_all_ports_the_first_one_must_be_lower() -> None:
    found = HostResources([], 65_534, 100, lambda _port: False).allocate(1)
    assert found == "needs a port, none from 65534 to 65535 is free: lower first_port"


def test_no_two_workers_share_a_slot_a_port_or_a_gpu() -> None:
    host = HostResources(["a", "b", "c", "d"], 9_000, 10, lambda port: port != 9_001)
    first, second = host.allocate(2), host.allocate(2)
    assert first == Allotment(0, 9_000, ("a", "b"))
    assert second == Allotment(1, 9_002, ("c", "d"))
    assert host.allocate(1) == "needs 1 GPU, 0 of 4 are free"


def test_what_a_worker_had_is_used_again() -> None:
    host = HostResources(["a", "b"], 9_000, 2, lambda _port: True)
    first, second = host.allocate(1), host.allocate(1)
    assert isinstance(first, Allotment)
    host.release(first)
    assert host.allocate(1) == first
    assert first != second


def test_the_port_that_was_released_last_is_used_last() -> None:
    """The entry of its worker may not have expired, and a router would send another model's requests there."""
    host = HostResources([], 9_000, 3, lambda _port: True)
    made = [host.allocate(1) for _ in range(3)]
    for one in (made[1], made[0]):
        assert isinstance(one, Allotment)
        host.release(one)
    found = [host.allocate(1) for _ in range(2)]
    assert [one.port for one in found if isinstance(one, Allotment)] == [9_001, 9_000]
    host = HostResources([], 9_000, 3, lambda _port: True)
    for expected in (9_000, 9_001, 9_002, 9_000):
        one = host.allocate(1)
        assert isinstance(one, Allotment)
        assert one.port == expected
        host.release(one)


def test_a_host_without_listed_gpus_assigns_none() -> None:
    found = HostResources([], 9_000, 1, lambda _port: True).allocate(8)
    assert isinstance(found, Allotment)
    assert found.names() == {"slot": "0", "port": "9000", "gpus": ""}


def test_a_port_that_somebody_listens_on_is_skipped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert (
            HostResources([], port, 1).allocate(1) == f"needs a port, none from {port} to {port} is free: raise ports"
        )


def test_gpus_are_those_that_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '0\\n1\\n'\n", "utf-8")
    program.chmod(0o755)
    assert installed_gpus() == ("0", "1")
    program.write_text("#!/bin/sh\nexit 9\n", "utf-8")
    with pytest.raises(ConfigError, match="nvidia-smi does not answer"):
        installed_gpus()


def test_a_worker_that_needs_more_gpus_than_the_host_has_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "local.toml"
    config.write_text(
        'gpus = ["0"]\nmodels = [{ name = "m", pools = [{ name = "p", role = "decode", gpus = 2, command = ["x"] }] }]',
        "utf-8",
    )
    with pytest.raises(ConfigError, match="a worker needs 2 GPUs, the host has 1"):
        read(config)
