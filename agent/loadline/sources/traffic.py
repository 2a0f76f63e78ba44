"""Reports of traffic, and the registered workers that routers name."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from urllib.parse import urlsplit

from msgspec.structs import replace

from loadline.client.resources import publish_now, running, store_of
from loadline.client.worker_registry import WorkerRegistry
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord
from loadline.ports import Bus
from loadline.sources.config import SourceKnobs
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects


class RegisteredAddresses:
    """Models of the registered workers, by the names under which routers know them."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, str]] = {}

    def update(self, model: str, records: Sequence[WorkerRecord]) -> None:
        """Replace the workers of a model."""
        names = {name: model for record in records for name in (record.worker, record.address, _host(record.address))}
        names.pop("", None)
        self._models[model] = names

    async def follow(self, stack: AsyncExitStack, knobs: SourceKnobs, models: Sequence[str]) -> None:
        """Follow the workers of some models in etcd until the stack is closed."""
        store = await stack.enter_async_context(store_of(None, knobs.etcd))
        for model in models:
            registry = WorkerRegistry(knobs.namespace, model, partial(self.update, model))
            following = running(registry.follow(store), f"registry of {model}")
            await stack.enter_async_context(following)

    def model_of(self, worker: str) -> str | None:
        """Return the model of a worker's name or address in a router's metrics; None: it is not registered."""
        for name in (worker, worker.rstrip("/"), _host(worker)):
            for models in self._models.values():
                if name in models:
                    return models[name]
        return None


class TrafficReporter:
    """Publisher of the traffic of one frontend.

    Args:
        bus: The connected bus.
        root: Prefix of every NATS subject.
        frontend: Name of the frontend.
    """

    def __init__(self, bus: Bus, root: str, frontend: str) -> None:
        self._bus = bus
        self._subjects = Subjects(root)
        self._frontend = frontend
        self._incarnation = time.time_ns() // 1_000_000
        self._sequence = 0

    async def report(self, model: str, sample: TrafficSample) -> None:
        """Publish the traffic of a model, if the bus accepts it now."""
        self._sequence += 1
        numbered = replace(sample, sequence=self._sequence)
        report = TrafficReport(model, self._frontend, self._incarnation, numbered)
        await publish_now(self._bus, self._subjects.traffic(model, self._frontend), report)


def _host(address: str) -> str:
    """Return host and port of a URL; of anything else, the text."""
    try:
        return urlsplit(address).netloc or address
    except ValueError:  # a router's label, which a client may have invented
        return address
