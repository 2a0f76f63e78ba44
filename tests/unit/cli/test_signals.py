"""SIGHUP during startup: the agent continues and reads the configuration once more."""

import subprocess
import sys

SCRIPT = """
import asyncio, os, signal, sys
from loadline import __main__
assert "structlog" not in sys.modules, "nothing that takes time comes first"
from loadline.adapters import signals
from loadline.cli import main as cli

def starting():
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    return asyncio.run(running())

async def running():
    reloads = []
    signals.install_handlers(lambda: None, lambda: reloads.append("early"))
    print(reloads, flush=True)
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0)
    while len(reloads) < 2:
        await asyncio.sleep(0.001)
    return 0

cli.main = starting
sys.argv = ["loadline", "run", "--config", "x"]
sys.exit(__main__.main())
"""


def test_a_sighup_during_startup_reloads_once() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "['early']\n"), done.stderr
