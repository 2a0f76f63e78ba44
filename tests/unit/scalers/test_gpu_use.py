"""GPUs that somebody else uses."""

import asyncio
from pathlib import Path

import pytest

from loadline.scalers.local.gpu_use import GpuUse
from loadline.scalers.local.host import Allotment, HostResources

NVIDIA_SMI = """#!/bin/sh
case $1 in
*gpu=*) printf '0, GPU-aaaa\\n1, GPU-bbbb\\n' ;;
*) printf 'GPU-bbbb, 4711, python3\\n' ;;
esac
"""


def refreshed() -> GpuUse:
    use = GpuUse()
    asyncio.run(use.refresh())
    return use


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    path = tmp_path / "nvidia-smi"
    path.write_text(NVIDIA_SMI, "utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("gpus", [("0", "1"), ("GPU-aaaa", "GPU-bbbb")])
def test_a_gpu_with_a_process_is_not_given_to_a_worker(gpus: tuple[str, str]) -> None:
    host, used = HostResources(gpus, 9_000, 10, lambda _port: True), refreshed().used
    first = host.allocate(1, used)
    assert isinstance(first, Allotment)
    assert first.gpus == gpus[:1]
    assert host.allocate(1, used) == "needs 1 GPUs, 0 of 2 are free; GPU 1 is used by python3 (process 4711)"


@pytest.mark.usefixtures("program")
def test_a_process_on_the_gpu_of_a_worker_is_the_workers() -> None:
    host, used = HostResources(["1", "0"], 9_000, 10, lambda _port: True), refreshed().used
    host.adopt(Allotment(0, 9_000, ("1",)))
    second = host.allocate(1, used)
    assert isinstance(second, Allotment)
    assert (second.gpus, second.port, second.slot) == (("0",), 9_001, 1)


def test_without_an_answer_of_nvidia_smi_no_gpu_counts_as_used(program: Path) -> None:
    program.write_text("#!/bin/sh\nexit 9\n", "utf-8")
    assert refreshed().used == {}
    program.unlink()
    assert refreshed().used == {}
