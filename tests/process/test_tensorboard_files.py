"""An agent that writes TensorBoard event files while it decides."""

from pathlib import Path

import pytest

from loadline.rig.rig import Rig
from tests.support.agents import MODEL, config
from tests.waiting import until_true

pytest.importorskip("tensorboardX")
pytestmark = pytest.mark.process


def test_an_agent_writes_a_run_of_each_model(rig: Rig, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    agent = rig.agent(config(rig, "a") + f'\n[tensorboard]\nlog_dir = "{logs}"\ninterval_ms = 50\n', "a")
    agent.wait_ready()
    until_true(lambda: any(b"num_gpu" in file.read_bytes() for file in logs.glob(f"{MODEL}/events.out.tfevents.*")))
    assert agent.stop() == 0
