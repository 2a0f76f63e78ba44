"""Workers in a circusd that does not answer for a while: no signal is lost, and the scaler starts without it."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator

import pytest

from loadline.adapters.circus_client import CircusClient, CircusUnavailable
from loadline.scalers.local import circus
from loadline.scalers.local.circus import CircusLauncher
from loadline.scalers.local.launcher import Launch
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process


class Circusd(CircusClient):
    """circusd with one worker, which does not answer while it is down."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.down = True
        self.asked = list[str]()

    async def command(self, name: str, /, **_properties: object) -> dict[str, object]:
        self.asked.append(name)
        if self.down:
            raise CircusUnavailable(f"circusd does not answer {name}")
        options = {"env": {"LOADLINE_SCALER": "loadline/circus"}}
        return {"pids": [self.pid], "statuses": {"p-0": "stopped"}, "options": options}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    monkeypatch.setattr(circus, "_UNAVAILABLE_WAIT_S", 0.01)
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("kinds", [("terminate",), ("kill",), ("terminate", "kill"), ("kill", "terminate")])
def test_a_worker_gets_the_strongest_signal_once_it_is_found(
    worker: "subprocess.Popen[bytes]", kinds: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        circusd, ended = Circusd(worker.pid), list[int | None]()
        launcher = CircusLauncher(circusd, "loadline/circus")
        async with asyncio.timeout(SCENARIO_S):
            process = await launcher.adopt("p-1", None, ended.append)
            assert process is not None
            for kind in kinds:
                process.send("kill" if kind == "kill" else "terminate")
            asked = len(circusd.asked)
            await until(lambda: len(circusd.asked) > asked, "it is looked for again")
            assert ended == []
            assert worker.poll() is None
            circusd.down = False
            await until(lambda: ended, "its end is told")
            await launcher.close()

    asyncio.run(scenario())
    expected = signal.SIGKILL if "kill" in kinds else signal.SIGTERM
    assert worker.wait(60) == -expected


def test_stopped_watchers_are_removed_before_the_first_new_one(worker: "subprocess.Popen[bytes]") -> None:
    async def scenario() -> None:
        circusd = Circusd(worker.pid)
        launcher = CircusLauncher(circusd, "loadline/circus")
        await launcher.discard_unreleased()
        launch = Launch("p-1", ("sleep", "600"), {}, None)
        with pytest.raises(OSError, match="does not answer"):
            await launcher.create(launch, lambda _code: None)
        circusd.down = False
        circusd.asked.clear()
        for _ in range(2):
            await launcher.create(launch, lambda _code: None)
        assert circusd.asked == ["status", "get", "rm", "add", "add"]

    asyncio.run(scenario())
