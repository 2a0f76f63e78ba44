"""gRPC server of one service on grpcio, with the services for health checks and reflection."""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from msgspec import Meta

from loadline.adapters.client_tls import load_context
from loadline.adapters.logs import bounded
from loadline.adapters.protobuf_tables import message_class
from loadline.errors import ConfigError, LoadlineError
from loadline.servers import Knobs
from loadline.toml.regular_file import open_regular

CALLS_MAX: Final = 20_000
"""Largest number of calls and streams at once; above it they get RESOURCE_EXHAUSTED."""
_MESSAGE_BYTES_MAX: Final = 65_536
_STOP_S: Final = 2.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    # By default some of more than 1,000 calls at once are refused, such as when KEDA restarts and opens all streams.
    ("grpc.server.max_pending_requests", CALLS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", CALLS_MAX),
    ("grpc.so_reuseport", 0),  # a second server on the port fails, instead of taking half of the calls
    # A stream may be silent for days: a peer that vanished without closing its connection is found within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

Handler = Callable[[Any], Any]
"""Coroutine function of a method with one response; function that returns an asynchronous iterator of a stream."""

_log = bounded("grpc_server")


class CallRefused(LoadlineError):
    """A call that is answered with an error.

    Args:
        code: Name of its status, such as ``INVALID_ARGUMENT``.
        detail: Sentence for the caller.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class TlsFiles(Knobs, frozen=True):
    """Files for TLS in PEM. They are read again at each connection, so a renewed certificate needs no restart."""

    cert_file: Annotated[str, Meta(min_length=1)]
    key_file: Annotated[str, Meta(min_length=1)]
    client_ca_file: str = ""

    def check(self) -> None:
        """Check the files: of a key with a passphrase, grpcio says that the address cannot be bound.

        Raises:
            ConfigError: A file cannot be used.
        """
        load_context("tls.", self.client_ca_file, self.cert_file, self.key_file, ca_key="client_ca_file")

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the contents of the key, the certificate and the CA.

        Raises:
            OSError: A file cannot be read.
        """
        names = (self.key_file, self.cert_file, self.client_ca_file)
        key, certificate, authority = (_content(name) if name else b"" for name in names)
        return key, certificate, authority


def _content(name: str) -> bytes:
    with open_regular(Path(name)) as file:
        return file.read()


class GrpcServer:
    """Server of one service; its overall health is SERVING while it runs.

    Args:
        service: Descriptor of the service.
        handlers: Handler of each method by name. One may raise ``CallRefused``.
        tls: Files for TLS; None: without encryption. With a CA, clients need a certificate that it signed.
    """

    def __init__(self, service: Any, handlers: Mapping[str, Handler], tls: TlsFiles | None = None) -> None:
        self._service = service
        self._handlers = handlers
        self._tls = tls
        self._health = health.aio.HealthServicer()

    async def start(self, host: str, port: int) -> int:
        """Start to listen; return the port, which is a free one for 0.

        Raises:
            OSError: A file for TLS cannot be read.
            RuntimeError: The address is in use or not an address of this host.
        """
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        name = self._service.full_name
        methods = {method.name: _method(method, self._handlers[method.name]) for method in self._service.methods}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        pool = descriptor_pool.DescriptorPool()
        for file in (self._service.file, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            pool.AddSerializedFile(file.serialized_pb)
        reflection.enable_server_reflection(names, self._server, pool)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._tls is None:
            bound = self._server.add_insecure_port(address)
        else:
            bound = self._server.add_secure_port(address, _credentials(self._tls))
        await self._server.start()
        return int(bound)

    async def set_serving(self, *, serving: bool) -> None:
        """Report the health of the service."""
        states = health_pb2.HealthCheckResponse
        await self._health.set(self._service.full_name, states.SERVING if serving else states.NOT_SERVING)

    async def stop(self) -> None:
        """Report NOT_SERVING and take no more calls; those under way get 2 s."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(_STOP_S)


def _method(method: Any, handle: Handler) -> Any:
    """Return the handler of grpcio for a method."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await handle(request)
        except CallRefused as refused:
            await context.abort(grpc.StatusCode[refused.code], str(refused))

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for response in handle(request):
                yield response
        except CallRefused as refused:
            await context.abort(grpc.StatusCode[refused.code], str(refused))

    build, call = (
        (grpc.unary_stream_rpc_method_handler, stream)
        if method.server_streaming
        else (grpc.unary_unary_rpc_method_handler, answer)
    )
    read = message_class(method.input_type).FromString
    return build(call, request_deserializer=read, response_serializer=_serialize)


def _serialize(message: Any) -> bytes:
    written: bytes = message.SerializeToString()
    return written


def _credentials(files: TlsFiles) -> Any:
    """Return credentials that follow the files."""
    used = files.read()

    def renewed() -> Any:
        """Return the new files, or None if they have not changed; called in a thread of the library."""
        nonlocal used
        try:
            found = files.read()
            if found == used:
                return None
            files.check()  # only of changed files: without a CA of clients it loads that of the system, 30 ms
        except (OSError, ConfigError) as error:
            _log.warning("certificate_unusable", detail=str(error), remedy="Until then, the former files stay in use.")
            return None
        used = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used), renewed, require_client_authentication=bool(files.client_ca_file)
    )


def _configuration(contents: tuple[bytes, bytes, bytes]) -> Any:
    key, certificate, authority = contents
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authority or None)
