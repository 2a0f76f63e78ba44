"""Engines and frontends of ``night``. Each engine has a sidecar, which registers its worker."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.sim.chaos.chaos_sidecar import ChaosSidecar
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.chaos.night_settings import NIGHT, REQUESTS_PER_S
from loadline.sim.chaos.request_runs import RequestRuns, WorkerRuns
from loadline.sim.chaos.scraped_engine import ScrapedEngine
from loadline.sim.chaos.served_engine import ServedEngine
from loadline.sim.chaos.stub_engine import StubEngine, WorkShare
from loadline.sim.chaos.traffic_frontend import TrafficFrontend
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.timeline import Timeline
from loadline.sim.world.worker import SimulatedWorker

_FRONTENDS: Final = ("front-0", "front-1")


class NightFleet:
    """Sidecars and frontends of the model.

    Args:
        timeline: Virtual time.
        interval_ms: Interval of reports and of pages of metrics.
        runs: Requests that run at workers; those of the model are simulated in aggregate.
        start: Starts a worker that does not become ready by itself.
        share: Returns the share of a worker in the work of its pool.
        report: Receives violations of invariants.
    """

    def __init__(
        self,
        timeline: Timeline,
        interval_ms: float,
        runs: RequestRuns,
        *,
        start: Callable[[WorkerRecord, StubEngine], SimulatedWorker],
        share: Callable[[WorkerRecord], WorkShare],
        report: ReportViolation,
    ) -> None:
        self.sidecars: dict[str, ChaosSidecar] = {}
        """Sidecars by worker."""
        self.frontends: list[TrafficFrontend] = []
        self._timeline = timeline
        self._interval_ms = interval_ms
        self._runs = runs
        self._start = start
        self._share = share
        self._report = report

    def start_frontends(self, bus: VirtualBus, demand: Callable[[], float], serves: Callable[[], bool]) -> None:
        """Start the frontends, which receive equal parts of the requests.

        Args:
            bus: The bus.
            demand: Returns the number of workers that the requests fill.
            serves: Returns True if a worker accepts requests.
        """
        self.frontends = [
            TrafficFrontend(
                self._timeline,
                bus.connection(),
                NIGHT,
                name,
                interval_ms=self._interval_ms,
                requests_per_s=lambda: demand() * REQUESTS_PER_S / len(_FRONTENDS),
                serves=serves,
            )
            for name in _FRONTENDS
        ]

    def start_engine(self, record: WorkerRecord, load_ms: float) -> ChaosSidecar:
        """Start an engine and its sidecar, which registers the worker when the engine has loaded."""
        engine = ServedEngine(self._timeline, record.model, load_ms)
        sidecar = ChaosSidecar(self._timeline, record, engine, self._register, self._report, self._interval_ms)
        self.sidecars = {name: one for name, one in self.sidecars.items() if one.alive} | {record.worker: sidecar}
        return sidecar

    def _register(self, sidecar: ChaosSidecar, incarnation: int) -> SimulatedWorker:
        """Start an incarnation of a worker, which its sidecar lets become ready."""
        record = replace(sidecar.record, incarnation=incarnation)
        observer = WorkerRuns(self._runs, (record.worker, record.incarnation))
        engine = ScrapedEngine(record.role, sidecar, observer)
        worker = self._start(record, engine)

        def share() -> WorkShare:
            if worker.serving:
                return self._share(record)
            return WorkShare(float(engine.works and worker.draining), 0)

        sidecar.engine.share = share
        return worker
