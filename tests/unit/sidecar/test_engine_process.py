import asyncio
import shlex

import pytest

from loadline.errors import ConfigError
from loadline.sidecar.engine_process import EngineProcess, batch_slots, cuts_streams


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
            EngineProcess(["/nowhere/vllm", "serve"], lambda: None)

    asyncio.run(scenario())
