"""Sidecar of the chaos world: registers an engine that it does not control, over all starts of both.

It feeds pages of metrics to the production state machine, and acts on it as ``loadline.sidecar`` does: the worker is
registered when the engine has answered, under a new incarnation for each start of the engine; while the engine is away
it is ``starting``.
"""

from collections.abc import Callable
from typing import Final

from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.sidecar.engine_state import SILENCE_MAX_MS, STANDSTILL_MAX_MS, EngineState
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.chaos.served_engine import ServedEngine
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.sim.world.worker import SimulatedWorker

_NEVER_MS: Final = 1e15
_DETECTION_MS: Final = {"dead": 0, "hanging": SILENCE_MAX_MS, "stalled": STANDSTILL_MAX_MS}
"""Time after which an engine in each of these states must be away, and three more pages at most."""
_PAGES: Final = 3

Register = Callable[["ChaosSidecar", int], SimulatedWorker]
"""Starts an incarnation of the worker, which registers as ``starting``."""


class ChaosSidecar:
    """One sidecar, which a scaler starts and ends together with its engine.

    Args:
        timeline: Virtual time.
        record: Record of the worker as its scaler knows it.
        engine: The engine.
        register: Starts an incarnation.
        report: Receives violations of invariants.
        interval_ms: Time between two pages.
    """

    def __init__(  # noqa: PLR0917 - one argument for each part
        self,
        timeline: Timeline,
        record: WorkerRecord,
        engine: ServedEngine,
        register: Register,
        report: ReportViolation,
        interval_ms: float,
    ) -> None:
        self.record = record
        self.engine = engine
        self.alive = True
        """True if its pod exists."""
        self.worker: SimulatedWorker | None = None
        """Present incarnation; None before the engine has answered."""
        self._timeline = timeline
        self._register = register
        self._report = report
        self._interval_ms = interval_ms
        self._down_until_ms = 0.0
        self._starts = 0
        """Start of the engine, by the sidecar's count, that its ready worker belongs to; 0: it is not ready."""
        self._engine_starts = 0
        """The same by the engine's own count."""
        self._start()
        self._schedule()

    def kill(self) -> None:
        """End sidecar and engine."""
        self.alive = False
        self.engine.end()
        self._end_worker()

    def crash(self, down_ms: float) -> None:
        """Kill the process of the sidecar; its engine keeps running, and another sidecar is started after a time."""
        self._down_until_ms = self._timeline.now_ms + down_ms
        self._end_worker()
        self.worker = None

    def sample(self) -> WorkerSample:
        """Return the load of the newest page."""
        reading = self._state.reading
        return WorkerSample(0, 0) if reading is None else reading.samples()[0]

    @property
    def serving(self) -> bool:
        """True if its worker accepts requests."""
        return self.worker is not None and self.worker.serving

    @property
    def empty(self) -> bool:
        """True if the engine was found without requests since its worker started to drain, or is away."""
        return self._drains_since_ms is not None and self._state.empty_since(int(self._drains_since_ms))

    def _start(self) -> None:
        """Start the process of the sidecar, which knows nothing of an earlier one."""
        self._state = EngineState("vllm", int(self._timeline.now_ms))
        self._starts = 0
        self._drains_since_ms: float | None = None

    def _end_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill()

    def _schedule(self) -> None:
        self._timeline.call_later(self._interval_ms, self._scrape)

    def _scrape(self) -> None:
        """Read the engine, and act on what it says."""
        if not self.alive:
            return
        self._schedule()
        if self._timeline.now_ms < self._down_until_ms:
            return
        if self._down_until_ms:
            self._down_until_ms = 0.0
            self._start()
        worker = self.worker
        if worker is not None and not worker.alive:  # drained, or killed with its pod
            self.kill()
            return
        if worker is not None and worker.draining and self._drains_since_ms is None:
            self._drains_since_ms = self._timeline.now_ms
        self._read()
        if worker is None or not worker.draining:
            self._follow_engine()
        self._check()

    def _read(self) -> None:
        now_ms, page = int(self._timeline.now_ms), self.engine.page()
        if page is None:
            self._state.failed("no answer", now_ms, refused=self.engine.state == "dead")
        else:
            self._state.answered(page, now_ms, now_ms)
        if self.worker is not None:  # an engine that does not answer is silent
            self.worker.silent_until_ms = 0.0 if page is not None else _NEVER_MS

    def _follow_engine(self) -> None:
        state = self._state
        if self._starts and (state.away or state.starts > self._starts):
            assert self.worker is not None  # noqa: S101 - it is ready
            self.worker.leave()
            self.worker, self._starts = None, 0
        if state.reading is None:
            return
        if self.worker is None:
            self.worker = self._register(self, START_MS + int(self._timeline.now_ms))
        if not self._starts and not state.away:
            self._starts, self._engine_starts = state.starts, self.engine.starts
            self.worker.become_ready()

    def _check(self) -> None:
        """Check what is registered against the engine itself."""
        worker, engine, now_ms = self.worker, self.engine, self._timeline.now_ms
        if worker is None or not worker.serving:
            return
        since_ms, detection_ms = now_ms - engine.since_ms, _DETECTION_MS.get(engine.state)
        slack_ms = _PAGES * self._interval_ms
        idle = engine.state == "stalled" and not engine.busy  # no page tells it from an idle engine
        if detection_ms is not None and since_ms > detection_ms + slack_ms and not idle:
            self._report("E1-away", f"{worker.record.worker}: the engine has been {engine.state} for {since_ms:.0f} ms")
        if engine.state == "up" and engine.starts > self._engine_starts and since_ms > slack_ms:
            self._report("E2-start", f"{worker.record.worker}: start {engine.starts} after {self._engine_starts}")
