"""Checks of a migration: when an agent commands it, and when a worker starts it."""

from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.chaos.outstanding_migrations import OutstandingMigration
from loadline.sim.chaos.request_runs import WorkerInstance
from loadline.sim.world.worker import SimulatedWorker
from loadline.wire.messages import MigrateCommand


class MigrationCheck:
    """Checks of a migration that an agent commands.

    Args:
        state: State of the agent.
        knobs: Limits of migration.
        migration: The migration.
        report: Receives violations.
    """

    def __init__(self, state: AgentState, knobs: MigrationKnobs, migration: Migration, report: ReportViolation) -> None:
        self._state = state
        self._knobs = knobs
        self._migration = migration
        self._report = report

    def run(self, others: list[OutstandingMigration]) -> None:
        """Run all checks but the fence, given the other migrations in flight."""
        self._check_endpoints()
        self._check_chain([one.migration for one in others])
        self._check_bounds(others)

    def _check_endpoints(self) -> None:
        migration = self._migration
        if migration.source.worker == migration.destination.worker:
            self._report("I21-where", f"{migration.source.worker} to itself")
        for end in (migration.source, migration.destination):
            pool = self._state.fleet.models[migration.model].pools.get(end.pool)
            worker = None if pool is None else pool.workers.get(end.worker)
            if worker is None or worker.record.incarnation != end.incarnation:
                self._report("I21-where", f"{end.worker} of incarnation {end.incarnation} is unknown")
            elif end is migration.destination and worker.availability != "ready":
                self._report("I21-where", f"the destination {end.worker} is {worker.availability}")

    def _check_chain(self, others: list[Migration]) -> None:
        sources = {_instance(one.source) for one in others}
        destinations = {_instance(one.destination) for one in others}
        if _instance(self._migration.destination) in sources or _instance(self._migration.source) in destinations:
            self._report("I21-chain", f"{self._migration} with {others} in flight")

    def _check_bounds(self, others: list[OutstandingMigration]) -> None:
        knobs, migration = self._knobs, self._migration
        requests = migration.requests_max + sum(one.requests for one in others)
        if requests > knobs.migrations_max:
            self._report("I21-bounds", f"{requests} requests of {migration.model}")
        for end in (migration.source, migration.destination):
            occupied = sum(one.requests for one in others if end in {one.migration.source, one.migration.destination})
            if occupied + migration.requests_max > knobs.migrations_per_worker_max:
                self._report("I21-bounds", f"{occupied + migration.requests_max} requests of {end.worker}")


def _instance(end: MigrationEndpoint) -> WorkerInstance:
    return end.worker, end.incarnation


class EpochCheck:
    """Check of the epochs of the migrations that each worker starts.

    Args:
        report: Receives violations.
    """

    def __init__(self, report: ReportViolation) -> None:
        self._report = report
        self._highest: dict[WorkerInstance, int] = {}

    def on_phase(self, worker: SimulatedWorker, phase: str, command: MigrateCommand) -> None:
        """Record a phase of a migration at its source."""
        instance = worker.record.worker, worker.record.incarnation
        highest = self._highest.get(instance, 0)
        if phase == "accepted" and command.epoch < highest:
            self._report("I21-stale", f"{instance} accepts epoch {command.epoch} after {highest}")
        self._highest[instance] = max(highest, command.epoch)
