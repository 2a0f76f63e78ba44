"""Registered workers without a pool: theirs is full or was removed, or another agent manages them."""

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
    """All workers without a pool; later settings may add one for them, or theirs may have room later."""

    workers: dict[str, UnassignedWorker] = field(default_factory=dict)
    gpus: dict[str, dict[str, int]] = field(default_factory=dict)
    """GPUs of managed workers while they are registered, by model and type."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of workers by model."""

    def add(self, key: str, worker: UnassignedWorker, workers_max: int) -> None:
        """Add a worker; when full, it takes the place of the newest one of the model with the most workers.

        A known worker, which writes its record at each renewal of its lease, keeps its place in the order. If it was
        managed before, its GPUs stay the same.
        """
        known = self.workers.get(key)
        if known is not None:
            self._count(known, -1)
            if known.managed:
                worker = UnassignedWorker(worker.registered, known.gpu_type, known.gpus, managed=True)
        elif len(self.workers) >= workers_max and not self._evict_for(worker.registered.record.model):
            return
        self.workers[key] = worker
        self._count(worker, 1)

    def remove(self, key: str) -> UnassignedWorker | None:
        """Remove and return the worker with a key; None if there is none."""
        known = self.workers.pop(key, None)
        if known is not None:
            self._count(known, -1)
        return known

    def _evict_for(self, model: str) -> bool:
        """Remove a worker of the model with the most workers; return False if that model would not keep as many."""
        largest = max(self.counts, key=lambda name: self.counts[name])
        if self.counts[largest] <= self.counts.get(model, 0) + 1:
            return False
        newest_first = reversed(self.workers.items())
        self.remove(next(key for key, worker in newest_first if worker.registered.record.model == largest))
        return True

    def _count(self, worker: UnassignedWorker, sign: int) -> None:
        """Add a worker and its GPUs (or subtract them, if ``sign`` is -1) to those of its model."""
        model, gpus = worker.registered.record.model, sign * worker.gpus
        _add(self.counts, model, sign)
        if worker.managed and gpus:
            by_type = self.gpus.setdefault(model, {})
            _add(by_type, worker.gpu_type, gpus)
            if not by_type:
                del self.gpus[model]


def _add(counts: dict[str, int], key: str, count: int) -> None:
    """Add to a count, which is absent while it is 0."""
    counts[key] = counts.get(key, 0) + count
    if not counts[key]:
        del counts[key]
