"""Runs Dynamo's own ``VirtualConnectorClient`` for tests, in a Python that has its wheel; needs nothing of loadline.

Lines on stdin: ``get``, ``complete`` (acknowledges the decision that was got last), ``wait SECONDS``. Each answer is a
line on stdout that begins with ``@``: of ``get`` prefill, decode and ID; of ``wait`` the word ``woke`` and the
monotonic time in ns, or ``blocked``.
"""

import asyncio
import importlib
import os
import sys
import time
from typing import Any


def _answer(*words: object) -> None:
    sys.stdout.write(f"@ {' '.join(map(str, words))}\n")
    sys.stdout.flush()


def _runtime(core: Any) -> Any:
    """Return a runtime on etcd without NATS; Dynamo 1.0 and 1.6 have different arguments for that."""
    loop = asyncio.get_running_loop()
    try:
        return core.DistributedRuntime(loop, "etcd", "tcp", event_plane="zmq")
    except TypeError:
        return core.DistributedRuntime(loop, "etcd", "tcp", enable_nats=False)


async def _main(namespace: str) -> None:
    core = importlib.import_module("dynamo._core")
    runtime = _runtime(core)
    client, decision = core.VirtualConnectorClient(runtime, namespace), None
    _answer("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, *arguments = line.split()
        if command == "get":
            decision = await client.get()
            _answer(decision.num_prefill_workers, decision.num_decode_workers, decision.decision_id)
        elif command == "complete":
            await client.complete(decision)
            _answer("completed")
        elif command == "wait":
            try:
                await asyncio.wait_for(client.wait(), float(arguments[0]))
                _answer("woke", time.monotonic_ns())
            except TimeoutError:
                _answer("blocked")
    os._exit(0)  # threads of the runtime would end the interpreter with a panic


asyncio.run(_main(sys.argv[1]))
