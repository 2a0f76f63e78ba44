"""Clients of Dynamo's virtual connector: a double on a store, and Dynamo's own in another Python."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from loadline.ports import Store, StoreChange, StoreSnapshot, Write

REAL_PYTHON: Final = os.environ.get("DYNAMO_PYTHON", "")
"""Python with the wheel ai-dynamo-runtime; empty: its client is not tested."""
_PROGRAM: Final = Path(__file__).with_name("dynamo_client_program.py")
_ANSWER_S: Final = 60.0


class ConnectorClient(Protocol):
    """The calls of ``VirtualConnectorClient``."""

    async def get(self) -> tuple[int, int, int]:
        """Return workers for prefill and decode, and the ID of the decision."""
        ...

    async def complete(self) -> None:
        """Acknowledge the decision that was got last."""
        ...

    async def wait(self, timeout_s: float) -> int | None:
        """Wait for an unacknowledged decision; return the monotonic time in ns, or None if there was none in time."""
        ...


class ClientDouble:
    """Client that behaves as that of Dynamo 1.6.1; ``test_dynamo_clients`` compares both."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._prefix = f"v1/{namespace}/planner/"
        self._got = (-1, -1, -1)

    async def get(self) -> tuple[int, int, int]:
        values = await self._values()
        prefill, decode = values.get("num_prefill_workers", -1), values.get("num_decode_workers", -1)
        self._got = (prefill, decode, values.get("decision_id", -1))
        return self._got

    async def complete(self) -> None:
        await self._store.commit([], [Write(f"{self._prefix}scaled_decision_id", str(self._got[2]).encode())])

    async def wait(self, timeout_s: float) -> int | None:
        changed = asyncio.Event()

        def on_snapshot(_snapshot: StoreSnapshot) -> None:
            changed.set()

        def on_changes(_changes: list[StoreChange]) -> None:
            changed.set()

        watching = asyncio.ensure_future(
            self._store.follow(self._prefix, on_snapshot, on_changes, lambda _connected: None)
        )
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await changed.wait()
                    changed.clear()
                    values = await self._values()
                    if values.get("decision_id", -1) > values.get("scaled_decision_id", -1):
                        return time.monotonic_ns()
        except TimeoutError:
            return None
        finally:
            watching.cancel()
            await asyncio.wait({watching})

    async def _values(self) -> dict[str, int]:
        snapshot = await self._store.read(self._prefix)
        return {entry.key.removeprefix(self._prefix): int(entry.value) for entry in snapshot.entries}


class RealClient:
    """Dynamo's own client, as a child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def get(self) -> tuple[int, int, int]:
        prefill, decode, decision = await self._ask("get")
        return int(prefill), int(decode), int(decision)

    async def complete(self) -> None:
        await self._ask("complete")

    async def wait(self, timeout_s: float) -> int | None:
        answer = await self._ask(f"wait {timeout_s}")
        return int(answer[1]) if answer[0] == "woke" else None

    async def answer(self) -> list[str]:
        """Return the words of the next answer; the runtime logs to stdout too."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_ANSWER_S):
            while line := await self._process.stdout.readline():
                if line.startswith(b"@"):
                    return line.decode().split()[1:]
        raise EOFError("Dynamo's client ended")

    async def _ask(self, command: str) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        return await self.answer()


@asynccontextmanager
async def real_client(etcd_url: str, namespace: str, python: str = REAL_PYTHON) -> AsyncIterator[RealClient]:
    """Run Dynamo's client; it is killed at the end, as a client that crashes."""
    process = await asyncio.create_subprocess_exec(
        python or sys.executable,
        str(_PROGRAM),
        namespace,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "ETCD_ENDPOINTS": etcd_url},
    )
    try:
        client = RealClient(process)
        assert await client.answer() == ["ready"]
        yield client
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
