"""KEDA's side of the gRPC calls to its scaler: requests as the operator sends them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from loadline.adapters.protobuf_tables import message_class
from loadline.scalers.keda_messages import SERVICE

METRIC = "loadline-desired-replicas"


class Keda:
    """The operator, with one connection to a scaler.

    Args:
        channel: The connection.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def call(self, method: str, /, **metadata: str) -> Any:
        """Start a call for a trigger with this metadata; await it, or read its stream."""
        described = SERVICE.methods_by_name[method]
        make = self.channel.unary_stream if described.server_streaming else self.channel.unary_unary
        reference = message_class(SERVICE.methods_by_name["IsActive"].input_type)(
            name="llama-decode", namespace="serving", scalerMetadata={"scalerAddress": "scaler:50051", **metadata}
        )
        request_class = message_class(described.input_type)
        request = reference
        if method == "GetMetrics":
            request = request_class(scaledObjectRef=reference, metricName=METRIC)
        return make(
            f"/{SERVICE.full_name}/{method}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=message_class(described.output_type).FromString,
        )(request)

    async def value(self, **metadata: str) -> float:
        """Return the value of the metric."""
        [found] = (await self.call("GetMetrics", **metadata)).metricValues
        assert found.metricValue == found.metricValueFloat
        return float(found.metricValueFloat)

    async def refusal(self, method: str, /, **metadata: str) -> tuple[str, str]:
        """Return code and sentence of a call that must fail."""
        call = self.call(method, **metadata)
        try:
            await (call.read() if SERVICE.methods_by_name[method].server_streaming else call)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{method} was answered")


class Pushes:
    """Stream of a pool's activity, collected in the background."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.received: list[bool] = []
        self.task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):  # `call.code()` has it
            async for pushed in self.call:
                self.received.append(pushed.result)


@asynccontextmanager
async def keda_at(port: int, credentials: Any = None) -> AsyncIterator[Keda]:
    """Connect to a scaler of this host."""
    address = f"localhost:{port}"
    options = (("grpc.max_receive_message_length", 65_536), ("grpc.max_reconnect_backoff_ms", 200))
    channel = (
        grpc.aio.secure_channel(address, credentials, options=options)
        if credentials
        else grpc.aio.insecure_channel(address, options=options)
    )
    async with channel:
        yield Keda(channel)
