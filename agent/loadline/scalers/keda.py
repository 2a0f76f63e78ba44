"""Scaler for fleets whose replicas KEDA sets: an external and external-push scaler of KEDA, over gRPC.

    loadline scaler keda --config keda.toml

KEDA asks for the desired replicas of a pool, and learns by a stream when a pool at zero needs its first worker.
Decisions are answered as the observed scaler does.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from loadline.adapters import logs, signals
from loadline.adapters.grpc_server import CallRefused, GrpcServer
from loadline.client.resources import running
from loadline.errors import ConfigError
from loadline.scalers.config_file import selected_models
from loadline.scalers.desired_counts import DesiredCounts
from loadline.scalers.keda_calls import KedaCalls
from loadline.scalers.keda_config import KedaScalerKnobs, read
from loadline.scalers.keda_messages import (
    SERVICE,
    GetMetricSpecResponse,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
)
from loadline.scalers.observed import Followed, observe
from loadline.wire.codec import printable

METRIC: Final = "loadline-desired-replicas"
"""Name of the only metric. KEDA puts the number of the trigger before it, so it need not name the pool."""
_TARGET: Final = 1
"""Target of the metric: with the type AverageValue, the number of replicas equals the value."""
_NAMES_SHOWN: Final = 20
_NAME_CHARS_MAX: Final = 64
_HEALTH_INTERVAL_S: Final = 1.0

_log = logs.bounded("keda_scaler")


class KedaService:
    """Methods of an external scaler of KEDA.

    Args:
        counts: Desired replicas.
        calls: Recorder of the calls.
    """

    def __init__(self, counts: DesiredCounts, calls: KedaCalls) -> None:
        self._counts = counts
        self._calls = calls
        self._closed = asyncio.Event()
        self.handlers = {
            "IsActive": self._is_active,
            "StreamIsActive": self._stream_is_active,
            "GetMetricSpec": self._get_metric_spec,
            "StreamMetricSpec": self._stream_metric_spec,
            "GetMetrics": self._get_metrics,
        }

    def close(self) -> None:
        """End all streams without an error: after an error KEDA waits up to a minute, after an end 2 s."""
        self._closed.set()
        self._counts.wake()

    async def _is_active(self, reference: Any) -> Any:
        return IsActiveResponse(result=self._count(*self._pool(reference)) > 0)

    async def _stream_is_active(self, reference: Any) -> AsyncIterator[Any]:
        """Send true whenever a pool has become active.

        False is left to the polls: pushed, it ends all workers at once, even if other triggers are active.
        """
        was_active = False
        with self._calls.streaming(*self._pool(reference)):
            while not self._closed.is_set():
                model, pool = self._pool(reference)
                changed = self._counts.changed(model)
                count = self._counts.count(model, pool)
                is_active = was_active if count is None else count > 0
                if is_active and not was_active:
                    yield IsActiveResponse(result=True)
                was_active = is_active
                await changed.wait()

    async def _get_metric_spec(self, reference: Any) -> Any:
        self._pool(reference)
        return GetMetricSpecResponse(
            metricSpecs=[MetricSpec(metricName=METRIC, targetSize=_TARGET, targetSizeFloat=_TARGET)]
        )

    async def _stream_metric_spec(self, reference: Any) -> AsyncIterator[Any]:
        """Send the target once: it never changes."""
        yield await self._get_metric_spec(reference)
        await self._closed.wait()

    async def _get_metrics(self, request: Any) -> Any:
        if request.metricName != METRIC:
            asked = printable(request.metricName, _NAME_CHARS_MAX)
            raise CallRefused("INVALID_ARGUMENT", f"metricName is '{asked}'; the only metric is {METRIC}.")
        count = self._count(*self._pool(request.scaledObjectRef))
        return GetMetricsResponse(
            metricValues=[MetricValue(metricName=METRIC, metricValue=count, metricValueFloat=count)]
        )

    def _pool(self, reference: Any) -> tuple[str, str]:
        """Return model and pool of a trigger's metadata.

        Raises:
            CallRefused: One of them is missing or unknown.
        """
        model = _named(reference, "model", self._counts.models)
        pool = _named(reference, "pool", self._counts.pools(model))
        if pool in self._counts.pools(model):
            self._calls.record(model, pool)
        return model, pool

    def _count(self, model: str, pool: str) -> int:
        count = self._counts.count(model, pool)
        if count is None:
            detail = f"No leader reports a count of pool {pool} of model {model}. See loadline status."
            raise CallRefused("UNAVAILABLE", detail)
        return count


def _named(reference: Any, key: str, known: Sequence[str]) -> str:
    """Return a name in the metadata of a trigger; any that is not empty if none is known yet."""
    name: str = reference.scalerMetadata.get(key, "")
    if name and (name in known or not known):
        return name
    problem = f"is '{printable(name, _NAME_CHARS_MAX)}'" if name else "is missing"
    shown = ", ".join(known[:_NAMES_SHOWN]) + (", ..." if len(known) > _NAMES_SHOWN else "")
    remedy = f" Known: {shown}." if known else ""
    trigger = printable(f"{reference.namespace}/{reference.name}", 2 * _NAME_CHARS_MAX)
    raise CallRefused("INVALID_ARGUMENT", f"The metadata `{key}` of the trigger of {trigger} {problem}.{remedy}")


async def run_keda(knobs: KedaScalerKnobs, stop: asyncio.Event) -> None:
    """Serve KEDA and answer decisions until ``stop`` is set.

    Raises:
        ConfigError: The address or a file for TLS cannot be used.
    """
    counts = DesiredCounts(knobs.models, knobs.hold_ms / 1_000)
    calls = KedaCalls()
    service = KedaService(counts, calls)
    server = GrpcServer(SERVICE, service.handlers, knobs.tls)
    try:
        port = await server.start(knobs.host, knobs.port)
    except (OSError, RuntimeError, ValueError) as error:
        problem = f"cannot listen on {knobs.host}:{knobs.port}: {str(error).splitlines()[0]}"
        raise ConfigError("host", problem, "Correct host, port or the files of tls.") from error
    _log.info("listening", host=knobs.host, port=port, tls=knobs.tls is not None)
    try:
        async with running(_report_health(server, counts), "health"):
            followed = Followed(counts, calls.obstacle)
            await observe(knobs.name, knobs.models, knobs.nats, stop, root=knobs.root, followed=followed)
    finally:
        service.close()
        await server.stop()


async def _report_health(server: GrpcServer, counts: DesiredCounts) -> None:
    """Report the service as SERVING while it knows counts."""
    while True:
        await server.set_serving(serving=counts.known)
        await asyncio.sleep(_HEALTH_INTERVAL_S)


async def serve(path: Path, only: Sequence[str]) -> None:
    """Run until SIGTERM or SIGINT, for the models of a configuration or some of them.

    Raises:
        ConfigError: The configuration is invalid.
    """
    knobs = read(path)
    models = tuple(selected_models(only, knobs.models))
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    await run_keda(replace(knobs, models=models), stop)
