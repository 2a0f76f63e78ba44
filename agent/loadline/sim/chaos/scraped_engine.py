"""Engine of a worker as its sidecar knows it: the load of the newest page, and whether it is empty."""

from loadline.core.vocabulary.samples import WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.sim.chaos.chaos_sidecar import ChaosSidecar
from loadline.sim.chaos.stub_engine import RunObserver, StubEngine, WorkShare


class ScrapedEngine(StubEngine):
    """Engine behind a sidecar. Its requests are simulated in aggregate.

    Args:
        role: Role of its worker.
        sidecar: The sidecar.
        observer: Observes requests; there are none.
    """

    def __init__(self, role: Role, sidecar: ChaosSidecar, observer: RunObserver) -> None:
        super().__init__(role, lambda: WorkShare(0.0, 0), observer)
        self._sidecar = sidecar

    @property
    def works(self) -> bool:
        """True until the requests that it had at the start of a drain have ended."""
        return bool(super().held)

    @property
    def held(self) -> list[str]:
        """``work`` until the sidecar has found the engine empty."""
        return [] if self._sidecar.empty else ["work"]

    def load(self) -> WorkerSample:
        """Return the load of the newest page."""
        return self._sidecar.sample()
