"""Migration of all models: the schedule of rounds, and the closing of migrations that report no end.

In the turn in which reports arrive, each model concerned has a round over the workers that reported. Every
``interval_ms``, a model has a full round over all its workers. A command counts as soon as it is planned, so no
migration is planned twice.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from loadline.core.engines.tpot import ProfileTpot, TpotModel, tpot_surface
from loadline.core.fleet.pool import Pool
from loadline.core.migration.failed_workers import FailedWorker
from loadline.core.migration.failure_domains import DomainMember
from loadline.core.migration.in_flight import InFlightMigration
from loadline.core.migration.knobs import DRAIN
from loadline.core.migration.memory import worker_key
from loadline.core.migration.name_codes import NameCodes
from loadline.core.migration.policies import build_policy
from loadline.core.migration.worker_table import WorkerTable
from loadline.core.rounds.faults import fault_text
from loadline.core.rounds.migration_round import MigrationGroup, MigrationRound
from loadline.core.state.agent_state import AgentState
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import Effect, RaiseAlarm

FULL_ROUNDS_MAX: Final = 10
"""Maximum full rounds in one turn, the longest due first: 10 models of 100 workers take about 10 ms."""
UNUSED_CODES_MAX: Final = 4_096
"""Maximum codes of nodes and units beyond one node and one unit per worker."""


class MigrationPipeline:
    """Pipeline that plans the migrations of all models. Its own data is derived from the state.

    Args:
        settings: Settings of the agent.
        state: State of the agent.
        needs_decisions: True if migrations must wait until the decisions have been read; False if another program
            scales the fleet.
    """

    def __init__(self, settings: Settings, state: AgentState, *, needs_decisions: bool) -> None:
        self.state = state
        self._needs_decisions = needs_decisions
        self._knobs: dict[str, ModelKnobs] = {model.name: model for model in settings.models if model.migration.enabled}
        self._tpot_profiles = settings.tpot_profiles
        self._nodes, self._units = NameCodes(), NameCodes()
        self._groups: dict[str, list[MigrationGroup]] = {}

    def plan(self, refreshed: Sequence[str], now: int) -> list[Effect]:
        """Plan the models whose totals were refreshed in this turn and those that are due; return the commands."""
        memory, models = self.state.migration, self.state.fleet.models
        due = {name: models[name].migration.due_ms for name in self._knobs}
        memory.expire_vanished(now)
        memory.detect_stall(min(due.values(), default=now), now)
        self._recycle_codes()
        if not self.state.leading:
            self._groups.clear()  # tables are not refreshed with the reports that a standby receives
            for name in self._knobs:
                models[name].migration.clear_round()
            memory.in_flight.expire(now)  # the leader counts the lost migrations
            return []
        effects = self._close_lost(now)
        if not due:
            return effects
        longest_due = sorted((due_ms, name) for name, due_ms in due.items() if due_ms <= now)
        full = {name for _, name in longest_due[:FULL_ROUNDS_MAX]}
        reported = self._knobs.keys() & set(refreshed)
        for name in self._knobs:
            if name in full or name in reported:
                effects += self._plan_safely(name, now, full_round=name in full, totals_refreshed=name in reported)
        return effects

    def next_wake(self) -> int | None:
        """Return the time of the next full round or deadline of a migration; None if there is neither."""
        models = self.state.fleet.models
        wakes = [models[name].migration.due_ms for name in self._knobs]
        end_ms = self.state.migration.in_flight.next_wake()
        return min(wakes if end_ms is None else [*wakes, end_ms], default=None)

    def _plan_safely(self, name: str, now: int, *, full_round: bool, totals_refreshed: bool) -> list[Effect]:
        """Plan a model; an exception stops the migrations of this model only."""
        in_flight, model = self.state.migration.in_flight, self.state.fleet.models[name].migration
        before = set(in_flight.open)
        try:
            effects = self._plan_model(name, now, full_round=full_round, totals_refreshed=totals_refreshed)
        except Exception as fault:  # noqa: BLE001 - any exception would stop scaling too, and again after a restart
            for command_id in in_flight.open.keys() - before:
                del in_flight.open[command_id]  # the command will not be sent
            self._groups.pop(name, None)
            self.state.count("migration_failures")
            if model.faulty:
                return []
            model.faulty = True
            return [RaiseAlarm("migration_failed", name, fault_text(fault))]
        model.faulty = False
        return effects

    def _recycle_codes(self) -> None:
        """Discard the codes of nodes and units if most are unused; tables are rebuilt with new ones."""
        if len(self._nodes) + len(self._units) > 2 * self.state.fleet.workers + UNUSED_CODES_MAX:
            self._nodes, self._units = NameCodes(), NameCodes()
            self._groups.clear()

    # -- lost migrations -----------------------------------------------------------------------------------------------

    def _close_lost(self, now: int) -> list[Effect]:
        """Close migrations past their deadline and those whose source is gone."""
        in_flight, models = self.state.migration.in_flight, self.state.fleet.models
        if not in_flight.open:
            return []
        lost = in_flight.expire(now)
        for migration in lost:
            models[migration.command.model].migration.tally.count_lost(migration, "deadline", now)
        for migration in [one for one in in_flight.open.values() if not one.ended]:
            if self._source_gone(migration, now):
                del in_flight.open[migration.command.command_id]
                models[migration.command.model].migration.tally.count_lost(migration, "source_lost", now)
        sources = Counter((migration.command.model, migration.command.source.worker) for migration in lost)
        return [
            RaiseAlarm("migration_lost", model, f"{worker} did not report the end of {_migrations(count)}")
            for (model, worker), count in sorted(sources.items())
        ]

    def _source_gone(self, migration: InFlightMigration, now: int) -> bool:
        """Return True if the source is gone, so that it cannot report the end.

        If only the destination is gone, the source reports the end. A vanished source that still reports has only lost
        its connection to the store, and is not gone.
        """
        model, source = migration.command.model, migration.command.source
        pool = self.state.fleet.models[model].pools.get(source.pool)
        worker = None if pool is None else pool.workers.get(source.worker)
        if worker is not None:
            return worker.record.incarnation != source.incarnation
        vanished = self.state.migration.vanished.get(worker_key(model, source.pool, source.worker))
        since_ms = now - self._knobs[model].migration.suspect_after_ms if model in self._knobs else now
        return vanished is None or vanished.incarnation != source.incarnation or vanished.seen_at_ms < since_ms

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _plan_model(self, name: str, now: int, *, full_round: bool, totals_refreshed: bool) -> list[Effect]:
        memory, model, knobs = self.state.migration, self.state.fleet.models[name].migration, self._knobs[name]
        if full_round:
            model.due_ms = now + knobs.migration.interval_ms
        in_flight = memory.in_flight.of_model(name)
        groups = self._groups[name] = self._groups.get(name) or self._build_groups(knobs)
        reported = [group.table.refresh(in_flight, now, totals_refreshed=totals_refreshed) for group in groups]
        changed, model.changed_peers = model.changed_peers, []
        for endpoint in changed:
            for group in groups:
                group.table.refresh_peer(endpoint)
        if not self._may_command(name, now):
            model.failed = []  # known only from a round
            return []
        listening_since_ms = max(self.state.bus_since_ms, memory.listening_since_ms)
        elsewhere = self._failed_elsewhere(name, now - knobs.migration.suspect_after_ms, listening_since_ms)
        round_ = MigrationRound(self.state, knobs, groups, elsewhere, listening_since_ms, now)
        effects = round_.alarms()
        for group, rows in zip(groups, reported, strict=True):
            effects += round_.plan(group, None if full_round else rows)
        return effects

    def _may_command(self, name: str, now: int) -> bool:
        """Return True if this agent leads, knows the fleet and its decisions, and the model is not paused."""
        state = self.state
        known = state.registry_read and (state.decisions_read or not self._needs_decisions)
        ending = state.stopping or state.leadership.handing_over
        leads = state.leadership.may_commit(now) and not ending
        return leads and known and state.bus_connected and name not in state.paused

    def _failed_elsewhere(self, name: str, seen_since_ms: int, listening_since_ms: int) -> list[DomainMember]:
        """Return failed workers of other models, and workers of all models that vanished and do not report.

        Vanished workers count only if the agent has received reports since before ``seen_since_ms``.
        """
        others = (model for other, model in self.state.fleet.models.items() if other != name)
        failed = [one for model in others for one in model.migration.failed]
        if listening_since_ms < seen_since_ms:
            silent = (one for one in self.state.migration.vanished.values() if one.seen_at_ms < seen_since_ms)
            failed += [FailedWorker(one.node, one.unit, one.parallel) for one in silent]
        nodes, units = self._nodes, self._units
        return [DomainMember(nodes.code(one.node), units.code(one.unit), one.parallel) for one in failed]

    # -- groups --------------------------------------------------------------------------------------------------------

    def _build_groups(self, knobs: ModelKnobs) -> list[MigrationGroup]:
        pools: dict[str, dict[str, Pool]] = {}
        for pool in self.state.fleet.models[knobs.name].pools.values():
            if pool.knobs.role == "encode":  # an encoding takes less time than its migration
                continue
            name = pool.knobs.role if knobs.migration.across_pools else pool.name
            pools.setdefault(name, {})[pool.name] = pool
        return [self._build_group(knobs, name, members) for name, members in pools.items()]

    def _build_group(self, knobs: ModelKnobs, name: str, pools: dict[str, Pool]) -> MigrationGroup:
        peers = self.state.fleet.models[knobs.name].migration.peers
        tpot = self._tpot(knobs.name, next(iter(pools.values())))
        table = WorkerTable(pools, peers, self._nodes, self._units, tpot)
        drains = (DRAIN,) if knobs.migration.migrate_drains else ()
        found = (build_policy(one, knobs.migration, table.role) for one in (*drains, *knobs.migration.active_policies))
        return MigrationGroup(name, table, tuple(one for one in found if one is not None))

    def _tpot(self, model: str, pool: Pool) -> TpotModel | None:
        sweep = self._tpot_profiles.get(model)
        if sweep is not None:
            return tpot_surface(sweep)
        decode = pool.engine.decode_model(pool.knobs.gpus_per_worker)
        return None if decode is None else ProfileTpot(decode)


def _migrations(count: int) -> str:
    return "its migration" if count == 1 else f"{count} of its migrations"
