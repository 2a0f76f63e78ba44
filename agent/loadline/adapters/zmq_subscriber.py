"""Subscriptions to ZeroMQ publishers, on pyzmq. A publisher may start later, restart, or send anything."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import zmq
import zmq.asyncio

# A larger message ends the connection, which then starts again.
MESSAGE_BYTES_MAX: Final = 65_536
_FRAMES_MAX: Final = 8
# Messages of one publisher that wait; a thousand iterations are five seconds or more. Newer ones are then dropped.
_WAITING_MAX: Final = 1_000
_RECONNECT_FIRST_MS: Final = 100
_RECONNECT_MAX_MS: Final = 5_000
# One read after the other without a pause would block the event loop while a publisher floods.
_READS_MAX: Final = 100

Frames = Sequence[bytes]


class ZmqSubscriber:
    """Subscriptions to all topics of any number of publishers. ZeroMQ reconnects by itself."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()

    def close(self) -> None:
        """Close all sockets at once."""
        self._context.destroy(linger=0)

    async def receive(self, endpoint: str, offer: Callable[[Frames], None]) -> None:
        """Pass every message of a publisher to ``offer`` until cancelled.

        Args:
            endpoint: Its address, such as ``tcp://10.0.0.7:20380``.
            offer: Takes the frames of a message; must be quick.

        Raises:
            ValueError: The address is none of ZeroMQ.
        """
        socket = self._context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.RCVHWM, _WAITING_MAX)
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_FIRST_MS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            try:
                socket.connect(endpoint)
            except zmq.ZMQError as error:
                raise ValueError(f"{endpoint} is no address of ZeroMQ: {error}") from error
            while True:
                for _ in range(_READS_MAX):
                    frames = await socket.recv_multipart()
                    offer(frames[:_FRAMES_MAX])
                await asyncio.sleep(0)
        finally:
            socket.close(linger=0)
