"""Commands to circusd, the process manager, on pyzmq."""

import asyncio
import itertools
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

from loadline.errors import LoadlineError

_TIMEOUT_S: Final = 10.0
# circusd refuses a command while another one runs, such as its own check of all processes.
_BUSY: Final = "already running"
_BUSY_WAIT_S: Final = 0.1
_BUSY_TRIES: Final = 50


class CircusUnavailable(LoadlineError):
    """A command that circusd did not answer; it may have carried it out."""


class CircusRefused(LoadlineError):
    """A command that circusd refused."""


class CircusClient:
    """Connection to a circusd, which is reconnected by itself.

    Args:
        endpoint: Its address, such as ``tcp://127.0.0.1:5555``.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(endpoint)
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()

    def close(self) -> None:
        """Close the connection at once."""
        self._context.destroy(linger=0)

    async def command(self, name: str, /, **properties: object) -> dict[str, Any]:
        """Send a command and return its reply.

        Raises:
            CircusRefused: It was refused.
            CircusUnavailable: It was not answered within 10 s.
        """
        for _ in range(_BUSY_TRIES):
            reply = await self._request(name, properties)
            if reply.get("status") != "error":
                return reply
            if _BUSY not in str(reply.get("reason")):
                break
            await asyncio.sleep(_BUSY_WAIT_S)
        raise CircusRefused(f"circusd refuses to {name} {properties.get('name', '')}: {reply.get('reason')}")

    async def _request(self, name: str, properties: dict[str, object]) -> dict[str, Any]:
        message_id = str(next(self._numbers))
        message = {"id": message_id, "command": name, "properties": properties}
        async with self._lock:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._socket.send(msgspec.json.encode(message))
                    while True:
                        reply = msgspec.json.decode(await self._socket.recv(), type=dict[str, Any])
                        # The reply to an earlier command may have come too late for it.
                        if reply.get("id") == message_id:
                            return reply
            except (TimeoutError, zmq.ZMQError, msgspec.MsgspecError) as error:
                problem = f"circusd at {self._endpoint} does not answer {name}"
                raise CircusUnavailable(f"{problem}: {error}" if str(error) else problem) from error
