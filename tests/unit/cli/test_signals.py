"""SIGHUP during startup reloads once; signals without a meaning for a daemon neither end it nor reach its children."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
import structlog

from loadline.adapters import signals
from loadline.adapters.logs import bounded
from tests.waiting import until

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

WITHOUT_EFFECT = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF")


def test_a_sighup_during_startup_reloads_once() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "['early']\n"), done.stderr


def test_signals_of_other_programs_are_logged_and_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_log", bounded("signals"))

    async def scenario() -> None:
        stops: list[None] = []
        signals.install_handlers(lambda: stops.append(None))
        for name in WITHOUT_EFFECT:
            os.kill(os.getpid(), signal.Signals[name])
        await until(lambda: len(lines) == len(WITHOUT_EFFECT))
        assert stops == []
        ignored = await asyncio.create_subprocess_exec("grep", "^SigIgn", "/proc/self/status", stdout=subprocess.PIPE)
        mask = int((await ignored.communicate())[0].split()[1], 16)
        assert not any(mask & (1 << (signal.Signals[name] - 1)) for name in WITHOUT_EFFECT)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: stops == [None])

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())
    assert sorted(line["signal"] for line in lines) == sorted(WITHOUT_EFFECT)
