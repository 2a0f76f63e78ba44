"""From what is believed of workers to the moves that are asked of them: hear, look, ask, remember.

When a worker is heard its model is looked at in the same turn, as far as that worker is concerned; every
``interval_ms`` all of it is. What was asked for counts from that moment on, so nothing is planned twice.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from loadline.core.engines.tpot import ProfileTpot, TpotModel, tpot_surface
from loadline.core.fleet.pool import Pool
from loadline.core.migration.failure_domains import DomainMember
from loadline.core.migration.in_flight import InFlightMigration
from loadline.core.migration.memory import FailedWorker, key_of
from loadline.core.migration.peers import MigrationPeers
from loadline.core.migration.policies import DRAIN, build_policy
from loadline.core.migration.worker_table import NameCodes, WorkerTable
from loadline.core.rounds.migration_round import MigrationGroup, MigrationRound
from loadline.core.state.agent_state import AgentState
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import Effect, RaiseAlarm

WHOLE_MAX: Final = 10
"""Models whose workers are all looked at in one turn, the longest due first: 10 of 100 workers take some 10 ms."""
NAMES_SPARE: Final = 4_096
"""Names of nodes and units that are kept beside those that the workers can have: each is a node and a unit at most."""
FAULT_MAX: Final = 200
"""Characters of a fault that are told."""


class MigrationPipeline:
    """Plans the moves of all models that have any. Everything that it remembers is in the state."""

    def __init__(self, settings: Settings, state: AgentState, *, needs_decisions: bool) -> None:
        self.state = state
        self._needs_decisions = needs_decisions
        self._knobs: dict[str, ModelKnobs] = {model.name: model for model in settings.models if model.migration.enabled}
        self._settings = settings
        self._nodes, self._units = NameCodes(), NameCodes()
        self._groups: dict[str, list[MigrationGroup]] = {}
        state.migration_knobs = {name: model.migration for name, model in self._knobs.items()}
        for name, model in self._knobs.items():
            state.migration.due.setdefault(name, 0)
            state.migration.keep(name, {pool.name: pool.role for pool in model.pools}, model.migration)
        for name in state.migration.due.keys() - self._knobs.keys():
            state.migration.forget(name)

    def plan(self, heard: Sequence[str], now: int) -> list[Effect]:
        """Look at the models of which something was heard, and at those that are due; gives what is to be asked."""
        memory = self.state.migration
        memory.expire_vanished(now)
        memory.listen(now)
        self._renumber()
        if not self.state.leading:
            self._groups.clear()  # what is heard meanwhile is not followed
            memory.failing.clear()
            memory.touched.clear()
            memory.flights.expire(now)  # who leads says what was lost
            return []
        effects = self._close(now)
        due = sorted((at_ms, name) for name, at_ms in memory.due.items() if at_ms <= now)
        whole = {name for _, name in due[:WHOLE_MAX]}
        new = self._knobs.keys() & set(heard)
        for name in self._knobs:
            if name in whole or name in new:
                effects += self._try(name, now, whole=name in whole, settled=name in new)
        return effects

    def _try(self, name: str, now: int, *, whole: bool, settled: bool) -> list[Effect]:
        """Look at a model. A fault in that holds the moves of this model, and nothing else."""
        memory = self.state.migration
        begun = set(memory.flights.open)
        try:
            effects = self._look(name, now, whole=whole, settled=settled)
        except Exception as fault:  # noqa: BLE001 - whatever it is, scaling would stop for it too, and again after a restart
            for command_id in memory.flights.open.keys() - begun:
                del memory.flights.open[command_id]  # nobody will be asked
            self._groups.pop(name, None)
            self.state.count("migration_failures")
            if name in memory.faults:
                return []
            memory.faults[name] = None
            return [RaiseAlarm("migration_failed", name, f"{type(fault).__name__}: {fault}"[:FAULT_MAX])]
        memory.faults.pop(name, None)
        return effects

    def _renumber(self) -> None:
        """Forget the numbers of nodes and units that are long gone; the boards take in all their workers anew."""
        if len(self._nodes) + len(self._units) > 2 * self.state.fleet.workers + NAMES_SPARE:
            self._nodes, self._units = NameCodes(), NameCodes()
            self._groups.clear()

    # -- what is in flight ---------------------------------------------------------------------------------------------

    def _close(self, now: int) -> list[Effect]:
        """Give up moves whose time is over, or whose workers are gone."""
        memory = self.state.migration
        lost = memory.flights.expire(now)
        for flight in lost:
            memory.tally(flight.move.model).lose(flight, "deadline", now)
        for flight in [flight for flight in memory.flights.open.values() if not flight.ended]:
            if self._without_source(flight, now):
                del memory.flights.open[flight.move.command_id]
                memory.tally(flight.move.model).lose(flight, "source_lost", now)
        sources = Counter((flight.move.model, flight.move.source.worker) for flight in lost)
        return [
            RaiseAlarm("migration_lost", model, f"{worker} never said how {_moves(count)} ended")
            for (model, worker), count in sorted(sources.items())
        ]

    def _without_source(self, flight: InFlightMigration, now: int) -> bool:
        """Whether nobody is left who could say how it ends. One whose destination is gone is ended by its source.

        One that is only cut off from the store may be heard still, or it is lost at its deadline.
        """
        model, source = flight.move.model, flight.move.source
        pool = self.state.fleet.models[model].pools.get(source.pool)
        worker = None if pool is None else pool.workers.get(source.worker)
        if worker is not None:
            return worker.record.incarnation != source.incarnation
        gone = self.state.migration.vanished.get(key_of(model, source.pool, source.worker))
        since_ms = now - self._knobs[model].migration.suspect_after_ms if model in self._knobs else now
        return gone is None or gone.incarnation != source.incarnation or gone.heard_at_ms < since_ms

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look(self, name: str, now: int, *, whole: bool, settled: bool) -> list[Effect]:
        """Look at a model: at all of it, or at those that were heard."""
        memory, knobs = self.state.migration, self._knobs[name]
        if whole:
            memory.due[name] = now + knobs.migration.interval_ms
        flights = memory.flights.of_model(name)
        groups = self._groups[name] = self._groups.get(name) or self._make_groups(knobs)
        heard = [group.table.hear(flights, now, settled=settled) for group in groups]
        for end in memory.touched.pop(name, ()):
            for group in groups:
                group.table.note(end)
        if not self._may(name, now):
            memory.failing.pop(name, None)  # what is not looked at is not known
            return []
        hearing_since_ms = max(self.state.bus_since_ms, memory.hearing_since_ms)
        gone_since_ms = now - knobs.migration.suspect_after_ms
        elsewhere = self._members(name, gone_since_ms, hearing=hearing_since_ms < gone_since_ms)
        look = MigrationRound(self.state, knobs, groups, elsewhere, hearing_since_ms, now)
        effects = look.alarms()
        for group, rows in zip(groups, heard, strict=True):
            effects += look.plan(group, None if whole else rows)
        return effects

    def _may(self, name: str, now: int) -> bool:
        """Whether anything may be asked of workers now: by a leader that knows and hears everything."""
        state = self.state
        known = state.registry_read and (state.decisions_read or not self._needs_decisions)
        leads = state.leadership.may_commit(now) and not state.stopping
        return leads and known and state.bus_connected and name not in state.paused

    def _make_groups(self, knobs: ModelKnobs) -> list[MigrationGroup]:
        pools: dict[str, dict[str, Pool]] = {}
        for pool in self.state.fleet.models[knobs.name].pools.values():
            name = pool.knobs.role if knobs.migration.across_pools else pool.name
            pools.setdefault(name, {})[pool.name] = pool
        peers = self.state.migration.peers.setdefault(knobs.name, MigrationPeers())
        return [self._make_group(knobs, name, members, peers) for name, members in pools.items()]

    def _make_group(
        self, knobs: ModelKnobs, name: str, pools: dict[str, Pool], peers: MigrationPeers
    ) -> MigrationGroup:
        tpot = self._tpot(knobs.name, next(iter(pools.values())))
        table = WorkerTable(pools, peers, self._nodes, self._units, tpot)
        drains = (DRAIN,) if knobs.migration.migrate_drains else ()
        found = (build_policy(one, knobs.migration, table.role) for one in (*drains, *knobs.migration.active_policies))
        return MigrationGroup(name, table, tuple(one for one in found if one is not None))

    def _tpot(self, model: str, pool: Pool) -> TpotModel | None:
        sweep = self._settings.tpot_profiles.get(model)
        if sweep is not None:
            return tpot_surface(sweep)
        decode = pool.engine.decode_model(pool.knobs.gpus_per_worker)
        return None if decode is None else ProfileTpot(decode)

    # -- who fails elsewhere -------------------------------------------------------------------------------------------

    def _members(self, name: str, gone_since_ms: int, *, hearing: bool) -> list[DomainMember]:
        """Workers of other models that fail, and those of all that have vanished and were not heard since.

        Where we were not ``hearing`` ourselves for so long, nobody has vanished for good.
        """
        memory = self.state.migration
        gone = (one for one in memory.vanished.values() if hearing and one.heard_at_ms < gone_since_ms)
        fallen = [
            *(one for model, failing in memory.failing.items() if model != name for one in failing),
            *(FailedWorker(one.node, one.unit, one.parallel) for one in gone),
        ]
        nodes, units = self._nodes, self._units
        return [DomainMember(nodes.number(one.node), units.number(one.unit), one.parallel) for one in fallen]


def _moves(count: int) -> str:
    return "its move" if count == 1 else f"{count} moves of it"
