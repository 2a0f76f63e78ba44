"""One look at the workers of a model: who fails, who leaves, and what each policy wants moved."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.pool import Pool
from loadline.core.migration.amounts import Sizer
from loadline.core.migration.columns import Mask
from loadline.core.migration.consolidation import Consolidation
from loadline.core.migration.failure_detection import detect_failures
from loadline.core.migration.failure_domains import DomainMember, without_domain
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.memory import key_of
from loadline.core.migration.outcomes import MigrationAmount, MigrationCode, NotPlanned, PairReport
from loadline.core.migration.policies import Policy
from loadline.core.migration.policy_reports import PAIRS_KEPT, PolicyReports
from loadline.core.migration.selectors import SizedPair
from loadline.core.migration.worker_table import WorkerTable
from loadline.core.state.agent_state import AgentState
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.effects import Effect, RaiseAlarm, SendMigrate
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint

ANY_HOPS = 2**53
"""Requests of workers that fail or leave are moved however often they were."""

Pair = tuple[int, int]
"""Rows of a source and a destination."""


class MigrationGroup(Struct):
    """The workers that requests of one kind can move between."""

    name: str
    table: WorkerTable
    policies: tuple[Policy, ...]


class MigrationRound:
    """One look at one model.

    Args:
        state: All that is known.
        knobs: What the model is told.
        groups: Its workers.
        elsewhere: Workers that fail or have vanished and are on none of its boards.
        hearing_since_ms: Since when all that workers say is heard.
        now: Time in ms.
    """

    def __init__(  # noqa: PLR0917 - one argument for each fact
        self,
        state: AgentState,
        knobs: ModelKnobs,
        groups: Sequence[MigrationGroup],
        elsewhere: Sequence[DomainMember],
        hearing_since_ms: int,
        now: int,
    ) -> None:
        self._state = state
        self._memory = memory = state.migration
        self._model = state.fleet.models[knobs.name]
        self._advises, self._knobs = knobs.no_operation, knobs.migration
        self._groups = groups
        self._now = now
        self._suspects = detect_failures(
            {group.name: group.table for group in groups}, knobs.migration, elsewhere, hearing_since_ms, now
        )
        before = memory.failing.pop(knobs.name, [])
        if self._suspects.fallen:
            memory.failing[knobs.name] = self._suspects.fallen
        self._others_fail = self._suspects.fallen != before  # than at the last look
        self._looks = PolicyReports(memory, knobs.name, self._suspects.doubt, now, advises=knobs.no_operation)
        self._leaving = self._on_their_way_out()
        self._effects: list[Effect] = []

    # -- who fails alone, and who leaves -------------------------------------------------------------------------------

    def alarms(self) -> list[Effect]:
        """That workers fail alone for want of the names of what they would fail with; once for each group."""
        return [alarm for group in self._groups for alarm in self._nameless(group)]

    def _nameless(self, group: MigrationGroup) -> list[Effect]:
        key = key_of(self._model.name, group.name)
        if key in self._memory.nameless:
            return []
        domain, table = self._knobs.failover_domain, group.table
        rows = np.flatnonzero(without_domain(table, self._suspects.own[group.name], domain))
        if not len(rows):
            return []
        self._memory.nameless[key] = None
        name = table.end(int(rows[np.argmin(table.ranks[rows])])).worker
        text = (
            f"{name} fails alone: failover_domain is {domain}, and its record names no such thing; write node and unit"
        )
        return [RaiseAlarm("failover_domain_unknown", self._model.name, text)]

    def _on_their_way_out(self) -> set[MigrationEndpoint]:
        """Workers that drain, or will if what is being committed or announced becomes true."""
        entry = self._state.ledger.entries.get(self._model.name)
        decisions = () if entry is None else (entry.pending, entry.decision)
        named = {
            MigrationEndpoint(target.pool, victim.worker, victim.incarnation)
            for decision in decisions
            if decision is not None
            for target in decision.targets
            for victim in target.victims
        }
        open_ones = (drain for drain in self._state.drains.open.values() if drain.model == self._model.name)
        return named | {MigrationEndpoint(drain.pool, drain.worker, drain.incarnation) for drain in open_ones}

    def _leaves(self, table: WorkerTable) -> Mask:
        """Who of a board is on its way out, in this life of its name."""
        found = np.zeros(len(table), dtype=np.bool_)
        for end in self._leaving:
            row = table.rows.get((end.pool, end.worker))
            if row is not None and table.end(row) == end:
                found[row] = True
        return found

    # -- what moves ----------------------------------------------------------------------------------------------------

    def plan(self, group: MigrationGroup, rows: Sequence[int] | None) -> list[Effect]:
        """Let the policies of a group choose; ``rows`` are the workers that it is about, None: all."""
        table, self._effects = group.table, []
        if not len(table):
            return []
        about = None
        if rows is not None:
            if not (rows or self._others_fail or self._has_news()):
                return []
            about = np.zeros(len(table), dtype=np.bool_)
            about[list(rows)] = True
        failing, leaving = self._suspects.domains.struck(table, self._suspects.own[group.name]), self._leaves(table)
        view: LoadView | None = None
        for one in group.policies:
            if view is None:
                table.load(self._memory.flights.of_model(self._model.name))
                view = self._view(group, failing, leaving)
            if self._let(one, group, view, about):
                view = None
        return self._effects

    def _has_news(self) -> bool:
        """Whether slots have become free in this turn."""
        flights = self._memory.flights.of_model(self._model.name)
        return any(flight.slots_freed_at_ms == self._now for flight in flights)

    def _view(self, group: MigrationGroup, failing: Mask, leaving: Mask) -> LoadView:
        return LoadView(
            group.table,
            self._knobs,
            failing=failing,
            leaving=leaving,
            tpot=group.table.tpot,
            itl_ms=self._model.objectives.itl_ms,
            fresh_after_ms=self._now - self._state.fleet.knobs.stale_after_ms,
            now=self._now,
            left_ms=self._left_ms,
            next_ready_ms=_soon_ready_ms(group.table.pools, self._now),
        )

    def _left_ms(self) -> float | None:
        """How long a request goes on, on average: half of its output, at the pace of the last minute."""
        traffic = self._model.traffic.status(self._now)
        if traffic.osl_tokens is None or traffic.itl_ms is None:
            return None
        return traffic.osl_tokens / 2.0 * traffic.itl_ms

    def _let(self, one: Policy, group: MigrationGroup, view: LoadView, about: Mask | None) -> bool:
        """Let a policy choose; says whether anything was asked for."""
        if about is not None and one.patient:
            return False
        sources = one.sources(view) & (view.movable >= 1.0)
        destinations = one.destinations(view) & (view.free_in >= 1.0)
        refusal, packing = None, self._packing(one, group, view, idle=not sources.any())
        if not sources.any():
            refusal = self._looks.nobody_gives(one, group.name, view, whole=about is None)
            if refusal is not None:
                self._looks.note(one, group.name, view, sources, destinations, [], refusal)
            return False
        if packing is not None:
            sources, refusal = packing.allowed(view, sources, destinations, self._now)
        looked: list[PairReport] = []
        pairs: list[Pair] = []
        for giving, taking in _sides(sources, destinations, None if one.urgent else about):
            # Loads are not reckoned anew within one look: who takes from one side is full for the other.
            taking[[destination for _, destination in pairs]] = False
            if refusal is None and giving.any() and taking.any():
                pairs += self._choose(one, view, giving, taking, looked)
        if about is not None and not (looked or one.urgent):
            return False  # nothing concerned those that were heard
        self._looks.note(one, group.name, view, sources, destinations, looked, refusal)
        if self._advises or not pairs:
            return False
        if packing is not None:
            packing.begun([view.table.keys[source][1] for source, _ in pairs], self._knobs, self._now)
        return True

    def _packing(self, one: Policy, group: MigrationGroup, view: LoadView, *, idle: bool) -> Consolidation | None:
        """What is remembered of a policy that waits before it acts, as of now; ``idle``: nobody could give."""
        if not one.patient:
            return None
        packing = self._memory.packing.setdefault(key_of(self._model.name, group.name), Consolidation())
        packing.judge(view, self._now)
        if idle:
            packing.since_ms = -1
        return packing

    def _choose(
        self, one: Policy, view: LoadView, sources: Mask, destinations: Mask, looked: list[PairReport]
    ) -> list[Pair]:
        """Ask for what a policy chooses, and add what it looked at; gives the pairs between which something moves."""
        pairs: list[Pair] = []
        flights = self._memory.flights.of_model(self._model.name)
        # What sources say of moves of a leader before counts too, but leaves room: nobody can hold up all others by it.
        adopted = sum(flight.slots for flight in flights if flight.adopted)
        under_way = sum(flight.slots for flight in flights if not flight.adopted)
        under_way += min(adopted, self._knobs.migrations_max // 2)
        between = {(flight.move.source, flight.move.destination) for flight in flights if not flight.ended}
        for verdict in one.select(view, sources, destinations, _once(one.fits, between)):
            found = self._bounded(verdict[2], under_way)
            if isinstance(found, MigrationAmount) and not self._advises:
                self._ask(one, view, verdict, found)
                between.add((view.table.end(verdict[0]), view.table.end(verdict[1])))
                under_way += found.requests
            if isinstance(found, MigrationAmount):
                pairs.append(verdict[:2])
                view.take(verdict[0], verdict[1], found.requests, found.tokens)
            if len(looked) < PAIRS_KEPT:
                source, destination = (view.table.keys[row][1] for row in verdict[:2])
                looked.append(self._looks.pair(source, destination, found))
            if isinstance(found, NotPlanned) and found.code is MigrationCode.MIGRATIONS_MAX:
                break
        return pairs

    def _bounded(self, found: MigrationAmount | NotPlanned, under_way: int) -> MigrationAmount | NotPlanned:
        """What of a pair may be asked for beside what is in flight."""
        if isinstance(found, NotPlanned):
            return found
        left = self._knobs.migrations_max - under_way
        if left < 1:
            return NotPlanned.of(MigrationCode.MIGRATIONS_MAX, requests=under_way)
        if found.requests <= left:
            return found
        return replace(found, requests=left, tokens=found.tokens * left // found.requests)

    def _ask(self, one: Policy, view: LoadView, verdict: SizedPair, amount: MigrationAmount) -> None:
        state, name, knobs = self._state, self._model.name, self._knobs
        epoch = state.leadership.epoch
        move = Migration(
            command_id=self._memory.flights.next_id(name, epoch),
            model=name,
            epoch=epoch,
            source=view.table.end(verdict[0]),
            destination=view.table.end(verdict[1]),
            trigger=one.name,
            rule=amount.rule,
            order=amount.order,
            value=amount.value,
            requests_max=amount.requests,
            tokens_max=amount.tokens_max,
            hops_max=ANY_HOPS if one.urgent else knobs.hops_max,
        )
        self._memory.flights.begin(move, amount.requests, amount.tokens, knobs.ttl_ms, self._now)
        self._memory.tally(name).note(one.name, "planned")
        self._effects.append(SendMigrate(move, knobs.ttl_ms, knobs.answer_ms))


def _once(fits: Sizer, between: set[tuple[MigrationEndpoint, MigrationEndpoint]]) -> Sizer:
    """The same, but nothing between two workers of which a move is in flight."""

    def fits_once(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
        if between and (view.table.end(source), view.table.end(destination)) in between:
            return NotPlanned(MigrationCode.IN_FLIGHT)
        return fits(view, source, destination)

    return fits_once


def _sides(sources: Mask, destinations: Mask, about: Mask | None) -> list[tuple[Mask, Mask]]:
    """Who may be paired because of some workers: these with all others, either way round; None: everybody."""
    if about is None:
        return [(sources, destinations.copy())]
    return [(sources & about, destinations.copy()), (sources & ~about, destinations & about)]


def _soon_ready_ms(pools: Mapping[str, Pool], now: int) -> float | None:
    """When the next worker that was asked for should be ready, from now; None: none is on its way, or it is late."""
    expected = [
        (pool.requested_at_ms[0] if pool.requested_at_ms else pool.scaled_up_at_ms) + min(pool.start_ups_ms)
        for pool in pools.values()
        if pool.start_ups_ms and (pool.requested_at_ms or pool.starting)
    ]
    return min((float(at_ms - now) for at_ms in expected if at_ms >= now), default=None)
