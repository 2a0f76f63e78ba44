"""An agent whose log nobody reads any more, as after the end of the program behind a pipe."""

import sys
from pathlib import Path
from typing import Final

import pytest

from loadline.rig.rig import Rig
from tests.support.agents import config

pytestmark = pytest.mark.process

WITHOUT_READER: Final = """
import os, sys
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(reader)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_an_agent_leads_on_without_a_reader_of_its_log(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        agent = rig.agent(config(rig, "a"), "a", runner=[sys.executable, "-c", WITHOUT_READER])
        agent.wait_leading()
        assert agent.stop() == 0
        assert agent.log.read_text() == ""
