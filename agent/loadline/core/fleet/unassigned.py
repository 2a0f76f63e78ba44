"""Registered workers without a pool: their pool was removed from the settings, or another agent manages them."""

from msgspec import Struct, field

from loadline.core.vocabulary.samples import RegisteredWorker


class UnassignedWorker(Struct, frozen=True):
    """A worker without a pool, and the GPUs that it occupies."""

    registered: RegisteredWorker
    gpu_type: str
    gpus: int
    managed: bool
    """True if this agent manages its model or managed its pool; only then are its GPUs counted."""


class UnassignedWorkers(Struct):
    """All workers without a pool; later settings may add one for them."""

    workers: dict[str, UnassignedWorker] = field(default_factory=dict)
    gpus: dict[str, dict[str, int]] = field(default_factory=dict)
    """GPUs of managed workers while they are registered, by model and type."""

    def add(self, key: str, worker: UnassignedWorker, workers_max: int) -> None:
        """Add a worker. The GPUs of a worker that was managed before stay the same."""
        known = self.remove(key)
        if known is not None and known.managed:
            worker = UnassignedWorker(worker.registered, known.gpu_type, known.gpus, managed=True)
        if len(self.workers) < workers_max:
            self.workers[key] = worker
            self._count(worker, worker.gpus)

    def remove(self, key: str) -> UnassignedWorker | None:
        """Remove and return the worker with a key; None if there is none."""
        known = self.workers.pop(key, None)
        if known is not None:
            self._count(known, -known.gpus)
        return known

    def _count(self, worker: UnassignedWorker, gpus: int) -> None:
        """Add ``gpus`` (or subtract, if negative) to those of a worker's model and type."""
        if worker.managed and gpus:
            by_type = self.gpus.setdefault(worker.registered.record.model, {})
            by_type[worker.gpu_type] = by_type.get(worker.gpu_type, 0) + gpus
            if not by_type[worker.gpu_type]:
                del by_type[worker.gpu_type]
            if not by_type:
                del self.gpus[worker.registered.record.model]
