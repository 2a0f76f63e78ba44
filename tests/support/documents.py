"""Programs of a document with other addresses and another root, and a subscriber to their messages."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.wire.codec import Codec, Rejected
from loadline.wire.subjects import Subjects

_DOCS = Path(__file__).parents[2] / "docs"
_PROGRAM = re.compile(r"```python\n(# (\w+)\.py.*?)```", re.DOTALL)


class Document:
    """Document of this project whose programs begin with their file name in a comment."""

    def __init__(self, name: str) -> None:
        self.text = (_DOCS / name).read_text("utf-8")
        self._programs = {program: code for code, program in _PROGRAM.findall(self.text)}

    @contextmanager
    def running(
        self, directory: Path, name: str, nats_url: str, etcd_url: str, root: str, *arguments: str
    ) -> Iterator["subprocess.Popen[str]"]:
        code = self._programs[name].replace("nats://127.0.0.1:4222", nats_url)
        code = code.replace("http://127.0.0.1:2379", etcd_url)
        script = directory / f"{name}.py"
        script.write_text(code.replace('"loadline"', f'"{root}"'), "utf-8")
        command = [sys.executable, "-W", "error", str(script), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with process:
            try:
                yield process
            finally:
                process.kill()


@asynccontextmanager
async def agent(nats_url: str, root: str) -> AsyncIterator[tuple[NatsBus, list[object]]]:
    """Yield a bus and the list of the decoded messages on it; fail if one is rejected."""
    bus, received = NatsBus(NatsKnobs(servers=(nats_url,)), name="test-agent"), list[object]()
    codec = Codec(Subjects(root), 262_144)
    await bus.connect(lambda _connected: None)
    try:
        for kind in ("load", "traffic", "applied", "drained", "migration"):
            await bus.subscribe(Subjects(root).all_of(kind), lambda *frame: received.append(codec.decode(*frame)))
        async with asyncio.timeout(60):
            yield bus, received
    finally:
        await bus.close()
    assert not any(isinstance(event, Rejected) for event in received)
