"""What must hold of a move: in the turn in which an agent asks for it, and at the worker that begins it."""

from collections.abc import Callable

from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint
from loadline.sim.chaos.commit_checks import Report
from loadline.sim.chaos.outstanding_migrations import OutstandingMigration
from loadline.sim.chaos.request_runs import WorkerLife
from loadline.sim.world.worker import SimulatedWorker
from loadline.wire.messages import MigrateCommand


class MigrationCheck:
    """Judges a move that an agent asks for.

    Args:
        state: What the agent believes.
        knobs: How many it may move.
        move: The move.
        report: Takes what does not hold.
    """

    def __init__(self, state: AgentState, knobs: MigrationKnobs, move: Migration, report: Report) -> None:
        self._state = state
        self._knobs = knobs
        self._migration = move
        self._report = report

    def run(self, others: list[OutstandingMigration]) -> None:
        """All but the fence, given what else is in flight."""
        self._check_endpoints()
        self._check_chain([one.migration for one in others])
        self._check_bounds(others)

    def _check_endpoints(self) -> None:
        its = self._migration
        if its.source.worker == its.destination.worker:
            self._report("I21-where", f"{its.source.worker} to itself")
        for end in (its.source, its.destination):
            pool = self._state.fleet.models[its.model].pools.get(end.pool)
            worker = None if pool is None else pool.workers.get(end.worker)
            if worker is None or worker.record.incarnation != end.incarnation:
                self._report("I21-where", f"{end.worker} of incarnation {end.incarnation} is not known")
            elif end is its.destination and worker.availability != "ready":
                self._report("I21-where", f"{end.worker} is to take requests in and is {worker.availability}")

    def _check_chain(self, others: list[Migration]) -> None:
        sources = {_life(one.source) for one in others}
        destinations = {_life(one.destination) for one in others}
        if _life(self._migration.destination) in sources or _life(self._migration.source) in destinations:
            self._report("I21-chain", f"{self._migration}, beside {others}")

    def _check_bounds(self, others: list[OutstandingMigration]) -> None:
        knobs, its = self._knobs, self._migration
        requests = its.requests_max + sum(one.requests for one in others)
        if requests > knobs.migrations_max:
            self._report("I21-bounds", f"{requests} requests of {its.model}")
        for end in (its.source, its.destination):
            mine = sum(one.requests for one in others if end in {one.migration.source, one.migration.destination})
            if mine + its.requests_max > knobs.migrations_per_worker_max:
                self._report("I21-bounds", f"{mine + its.requests_max} requests of {end.worker}")


def _life(end: MigrationEndpoint) -> WorkerLife:
    return end.worker, end.incarnation


class EpochCheck:
    """The highest term of which each worker began a move.

    Args:
        report: Takes what does not hold.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._highest: dict[WorkerLife, int] = {}

    def on_phase(self, worker: SimulatedWorker, phase: str, command: MigrateCommand) -> None:
        """A step of a move."""
        life = worker.record.worker, worker.record.incarnation
        highest = self._highest.get(life, 0)
        if phase == "accepted" and command.epoch < highest:
            self._report("I21-stale", f"{life} obeys epoch {command.epoch} after {highest}")
        self._highest[life] = max(highest, command.epoch)
