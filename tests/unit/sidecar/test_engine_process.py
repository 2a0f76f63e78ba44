import asyncio
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadline.core.vocabulary.events import WorkerDrained
from loadline.errors import ConfigError, EngineEnded
from loadline.sidecar.engine_process import FoundEngine, StartedEngine, batch_slots, cuts_streams
from tests.support.engine_pages import vllm
from tests.support.sidecar_rig import rig, scenario
from tests.waiting import until


@pytest.mark.parametrize(
    ("command", "cuts"),
    [
        ("vllm serve m", True),
        ("/opt/venv/bin/vllm serve m --port 1", True),
        ("python -m vllm.entrypoints.openai.api_server", True),
        ("vllm serve m --shutdown-timeout 0", True),
        ("vllm serve m --shutdown-timeout=0", True),
        ("vllm serve m --shutdown-timeout", True),
        ("vllm serve m --shutdown-timeout 30", False),
        ("vllm serve m --shutdown-timeout=30", False),
        ("vllm serve m --shutdown_timeout 30", False),
        ("python -m sglang.launch_server", False),
    ],
)
def test_a_vllm_without_a_shutdown_timeout_cuts_its_streams(command: str, *, cuts: bool) -> None:
    assert cuts_streams(shlex.split(command)) == cuts


@pytest.mark.parametrize(
    ("command", "slots"),
    [
        ("vllm serve m --max-num-seqs 64", 64),
        ("vllm serve m --max-num-seqs=8", 8),
        ("vllm serve m --max_num_seqs 64", 64),
        ("vllm serve m --max-num-seqs", None),
        ("vllm serve m --max-num-seqs many", None),
        ("vllm serve m", None),
    ],
)
def test_the_largest_batch_is_read_from_the_command(command: str, slots: int | None) -> None:
    assert batch_slots(shlex.split(command)) == slots


def test_a_program_that_cannot_be_started_is_named() -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match=r"/nowhere/vllm cannot be started: No such file or directory\. Write"):
            StartedEngine(["/nowhere/vllm", "serve"], lambda: None)

    asyncio.run(scenario())


@contextmanager
def other_process(*command: str) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_an_engine_that_others_started_is_ended_when_it_is_drained() -> None:
    async def run() -> None:
        with other_process("sleep", "600") as engine:
            async with rig(vllm(running=1), pid=engine.pid) as made:
                record = await made.state_is("ready")
                await made.drain(record.incarnation)
                await made.answers(3)
                assert engine.poll() is None, "it has a request"
                made.engine.body = vllm()
                await made.ended()
                assert made.received(WorkerDrained)
                assert engine.wait() == -signal.SIGTERM

    scenario(run)


def test_an_engine_that_others_started_outlives_a_sidecar_that_is_stopped() -> None:
    async def run() -> None:
        with other_process("sleep", "600") as engine:
            async with rig(vllm(), pid=engine.pid) as made:
                await made.state_is("ready")
                made.sidecar.stop()
                await made.ended()
                assert made.record() is None
            assert engine.poll() is None

    scenario(run)


def test_an_engine_that_others_end_ends_its_sidecar() -> None:
    async def run() -> None:
        with other_process("sleep", "600") as engine:
            async with rig(vllm(running=1), pid=engine.pid) as made:
                await made.state_is("ready")
                engine.kill()
                with pytest.raises(EngineEnded, match="the engine ended"):
                    await made.ended()
                assert made.record() is None

    scenario(run)


def test_the_command_of_a_running_engine_tells_its_largest_batch() -> None:
    async def run() -> None:
        with other_process("sh", "-c", "read x", "vllm", "--max-num-seqs", "7") as engine:
            command = Path(f"/proc/{engine.pid}/cmdline")
            await until(command.read_bytes, "the kernel has its command")
            found = FoundEngine(engine.pid, lambda: None)
            assert found.batch_slots == 7
            found.forget()

    scenario(run)


def test_a_process_that_does_not_exist_is_named() -> None:
    with other_process("true") as ended:
        ended.wait()

    async def run() -> None:
        with pytest.raises(ConfigError, match=rf"there is no process {ended.pid}\. Write the id"):
            FoundEngine(ended.pid, lambda: None)

    scenario(run)
