"""Records, samples and fleets for tests of the core."""

from collections.abc import Sequence

import msgspec

from loadline.core.fleet.fleet import Fleet, FleetKnobs, Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.traffic import Traffic
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.events import LoadReported
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role, WorkerPhase

START = 1_700_000_000_000
STALE_MS = 5_000


def settings_of(*models: ModelKnobs) -> Settings:
    """Return the settings of a single agent, whose guardrails allow every step at once."""
    guard = GuardrailKnobs(stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0)
    return Settings("agent-1", "all", tuple(msgspec.structs.replace(model, guardrails=guard) for model in models))


def registered(  # noqa: PLR0917 - in the order in which tests vary them
    worker: str,
    pool: str = "decode",
    role: Role = "decode",
    state: WorkerPhase = "ready",
    incarnation: int = 1,
    ranks: int = 1,
) -> RegisteredWorker:
    """Return a worker of model ``m`` under lease 5."""
    return RegisteredWorker(WorkerRecord("m", pool, worker, role, incarnation, state, data_parallel_size=ranks), 5)


def sample(
    sequence: int, kv: float | None = 0.0, waiting: int | None = 0, running: int | None = 1, rank: int = 0
) -> WorkerSample:
    """Return a sample with the metrics of the threshold planner."""
    return WorkerSample(sequence, 0, rank, kv_usage_ratio=kv, waiting_requests=waiting, running_requests=running)


def reported(worker: str, *samples: WorkerSample, pool: str = "decode", incarnation: int = 1) -> LoadReported:
    """Return a load report of model ``m``."""
    return LoadReported("m", pool, worker, incarnation, list(samples))


def fleet_of(*pools: PoolKnobs, knobs: FleetKnobs | None = None, models: Sequence[str] = ("m",)) -> Fleet:
    """Return an empty fleet with the same pools in each model."""
    knobs = knobs or FleetKnobs(stale_after_ms=STALE_MS)

    def model(name: str) -> Model:
        traffic = Traffic(knobs.traffic_window_ms, knobs.frontends_max, knobs.stale_after_ms)
        return Model(name, {pool.name: Pool(pool) for pool in pools}, traffic)

    return Fleet(knobs, {name: model(name) for name in models})


class FleetHarness:
    """Model ``m`` with pools of ready workers; a test sets their reports and the time."""

    def __init__(self, pools: Sequence[PoolKnobs], workers: int = 2) -> None:
        self.fleet = fleet_of(*pools)
        self.model = self.fleet.models["m"]
        self.now = START
        self.sequence = 0
        for pool in pools:
            self.add_workers(pool.name, workers)

    def pool(self, name: str) -> Pool:
        """Return a pool by name."""
        return self.model.pools[name]

    def add_workers(self, name: str, count: int, state: WorkerPhase = "ready") -> None:
        """Register ``count`` more workers."""
        pool = self.pool(name)
        first = len(pool.workers)
        for number in range(first, first + count):
            self.fleet.register(registered(f"{name}{number}", name, pool.knobs.role, state), self.now)

    def remove_newest(self, name: str) -> None:
        """Deregister the newest worker."""
        self.fleet.deregister("m", name, list(self.pool(name).workers)[-1], self.now)

    def report(self, name: str, kv: float = 0.0, waiting: int = 0, running: int = 1, silent: int = 0) -> None:
        """Report all workers of a pool but the last ``silent``; the first one has all ``waiting`` requests."""
        self.sequence += 1
        workers = list(self.pool(name).workers)
        for number, worker in enumerate(workers[: len(workers) - silent]):
            reported_sample = sample(self.sequence, kv, waiting if number == 0 else 0, running)
            self.fleet.ingest(reported(worker, reported_sample, pool=name), self.now)

    def report_without_load(self, name: str) -> None:
        """Report all workers of a pool without any load metric."""
        self.sequence += 1
        for worker in self.pool(name).workers:
            self.fleet.ingest(reported(worker, sample(self.sequence, None, None, None), pool=name), self.now)

    def refresh(self) -> Model:
        """Return the model after an update of its totals."""
        self.model.expire_silent(self.now, self.fleet.knobs)
        self.model.refresh_totals(self.now, self.fleet.knobs)
        return self.model
