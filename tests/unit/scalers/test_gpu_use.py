"""GPUs that somebody else uses."""

import asyncio
from pathlib import Path

import pytest

from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.scalers.local import gpu_use
from loadline.scalers.local.config import LocalKnobs, LocalModelKnobs, LocalPoolKnobs
from loadline.scalers.local.gpu_use import GpuUse
from loadline.scalers.local.host import Allotment, HostResources
from loadline.scalers.local.launcher import ChildLauncher
from loadline.scalers.local.scaler import LocalScaler
from tests.support.decisions import decision
from tests.unit.client.test_scaler_client import Agent
from tests.waiting import SCENARIO_S, until

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
    assert host.allocate(1, used) == "needs 1 GPU, 0 of 2 are free; GPU 1 is used by python3 (process 4711)"


@pytest.mark.usefixtures("program")
def test_a_process_on_the_gpu_of_a_worker_is_the_workers() -> None:
    host, used = HostResources(["1", "0"], 9_000, 10, lambda _port: True), refreshed().used
    host.adopt(Allotment(0, 9_000, ("1",)))
    second = host.allocate(1, used)
    assert isinstance(second, Allotment)
    assert (second.gpus, second.port, second.slot) == (("0",), 9_001, 1)


def test_a_gpu_that_is_taken_after_a_decision_is_done_is_reported(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_use, "_INTERVAL_S", 0.0)
    pool = LocalPoolKnobs("p", "decode", ("sleep", "600"))
    knobs = LocalKnobs((LocalModelKnobs("m", (pool,)),), gpus=("GPU-bbbb",), restart_backoff_ms=1)
    taken, free = NVIDIA_SMI, NVIDIA_SMI.replace("printf 'GPU-bbbb, 4711, python3\\n'", "")
    assert free != taken

    def answer(script: str) -> None:
        program.write_text(script, "utf-8")

    async def scenario() -> None:
        agent, stop = Agent(), asyncio.Event()
        async with asyncio.timeout(SCENARIO_S), ScalerClient("s", ["m"], bus=agent.bus) as scaler:
            local = LocalScaler(knobs, scaler, ChildLauncher(outlive=False))
            running = asyncio.create_task(local.run(stop))
            workers = local._pools["m", "p"].workers
            answer(free)
            await agent.announce(decision(1, 1, PoolTarget("p", "decode", 1, 0)))
            await until(lambda: agent.applied and agent.applied[-1].status == "done", "the worker runs")
            answer(taken)
            workers["p-1"].process.send("kill")
            shown = (
                "p: needs 1 GPU, 0 of 1 are free; GPU 1 is used by python3 (process 4711); p-1 was ended by signal 9"
            )
            await until(lambda: agent.applied[-1].detail.startswith(shown), shown)
            answer(free)
            await until(lambda: "p-2" in workers, "the worker is replaced")
            stop.set()
            await running
        assert {answer.status for answer in agent.applied} == {"accepted", "done"}

    asyncio.run(scenario())


def test_without_an_answer_of_nvidia_smi_no_gpu_counts_as_used(program: Path) -> None:
    program.write_text("#!/bin/sh\nexit 9\n", "utf-8")
    assert refreshed().used == {}
    program.unlink()
    assert refreshed().used == {}
