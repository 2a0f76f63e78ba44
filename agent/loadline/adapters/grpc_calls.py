"""Unary gRPC calls to many servers, on grpcio, with a bounded number of open connections."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from loadline.errors import LoadlineError

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 65_536),
    ("grpc.enable_retries", 0),  # a call that is sent twice migrates twice
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class CallFailed(LoadlineError):
    """A call without an answer.

    Args:
        code: Name of its status, such as ``UNAVAILABLE``.
        detail: The server's or the library's sentence.
        sent: False if it certainly did not reach the server.
    """

    def __init__(self, code: str, detail: str, *, sent: bool) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.sent = sent


class GrpcCalls:
    """Connections by address: a server that moved has another one.

    Args:
        connections_max: Above this number the connection that was unused longest is closed, unless a call is under way.
        timeout_s: Time limit of a call.
    """

    def __init__(self, connections_max: int, timeout_s: float) -> None:
        self._connections_max = connections_max
        self._timeout_s = timeout_s
        self._channels: OrderedDict[str, Any] = OrderedDict()
        self._busy: dict[str, int] = {}

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._channels)

    async def close(self) -> None:
        """Close all connections; calls under way fail."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def call(self, address: str, method: str, request: Any, read: Callable[[bytes], Any]) -> Any:
        """Call a method without encryption, as the server expects it.

        Args:
            address: ``host:port``.
            method: Path of the method.
            request: Message with ``SerializeToString``.
            read: Reads the answer.

        Raises:
            CallFailed: There is no answer within the time limit, or it is an error.
        """
        channel = await self._channel(address)
        self._busy[address] = self._busy.get(address, 0) + 1
        try:
            call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=read)
            return await call(request.SerializeToString(), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            detail = error.details() or ""
            # UNAVAILABLE is also the code of a connection that broke during the call.
            sent = error.code() is not grpc.StatusCode.UNAVAILABLE or "failed to connect" not in detail
            raise CallFailed(error.code().name, detail, sent=sent) from error
        finally:
            self._busy[address] -= 1
            if not self._busy[address]:
                del self._busy[address]

    async def _channel(self, address: str) -> Any:
        if address in self._channels:
            self._channels.move_to_end(address)
            return self._channels[address]
        channel = self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        idle = [one for one in self._channels if one not in self._busy and one != address]
        for one in idle[: max(len(self._channels) - self._connections_max, 0)]:
            await self._channels.pop(one).close()
        return channel
