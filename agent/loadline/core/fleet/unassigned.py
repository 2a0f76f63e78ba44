"""Registered workers that belong to no pool here: of pools that are no more configured, or of other agents."""

from msgspec import Struct, field

from loadline.core.vocabulary.samples import RegisteredWorker


class UnassignedWorker(Struct, frozen=True):
    """One of them, and what it occupies."""

    registered: RegisteredWorker
    gpu_type: str
    gpus: int
    managed: bool
    """Whether its model is one of ours, or its pool was: what others run is not counted here."""


class UnassignedWorkers(Struct):
    """All of them: settings to come may have a pool for them."""

    workers: dict[str, UnassignedWorker] = field(default_factory=dict)
    gpus: dict[str, dict[str, int]] = field(default_factory=dict)
    """What ours occupy, by model and type, for as long as they are registered."""

    def add(self, place: str, found: UnassignedWorker, workers_max: int) -> None:
        """Know of one at its place. One whose pool was ours occupies what it did there."""
        known = self.remove(place)
        if known is not None and known.managed:
            found = UnassignedWorker(found.registered, known.gpu_type, known.gpus, managed=True)
        if len(self.workers) < workers_max:
            self.workers[place] = found
            self._count(found, found.gpus)

    def remove(self, place: str) -> UnassignedWorker | None:
        """The one at a place is gone, or has a pool; None if there was none."""
        known = self.workers.pop(place, None)
        if known is not None:
            self._count(known, -known.gpus)
        return known

    def _count(self, one: UnassignedWorker, gpus: int) -> None:
        if one.managed and gpus:
            by_type = self.gpus.setdefault(one.registered.record.model, {})
            by_type[one.gpu_type] = by_type.get(one.gpu_type, 0) + gpus
            if not by_type[one.gpu_type]:
                del by_type[one.gpu_type]
            if not by_type:
                del self.gpus[one.registered.record.model]
