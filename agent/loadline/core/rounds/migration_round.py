"""One migration round of a model: detect failures, evaluate each policy, and command migrations."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.engines.arrays import Mask
from loadline.core.fleet.pool import Pool
from loadline.core.migration.amounts import Sizer
from loadline.core.migration.consolidation import Consolidation
from loadline.core.migration.failed_workers import FailedWorker
from loadline.core.migration.failure_detection import detect_failures
from loadline.core.migration.failure_domains import DomainMember, lacks_domain
from loadline.core.migration.in_flight import InFlightMigration
from loadline.core.migration.load_view import Command, LoadView
from loadline.core.migration.outcomes import MigrationAmount, MigrationCode, NotPlanned, PairReport
from loadline.core.migration.policies import Policy
from loadline.core.migration.policy_reports import PAIRS_MAX, PolicyReports
from loadline.core.migration.worker_table import WorkerTable
from loadline.core.state.agent_state import AgentState
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.effects import Effect, RaiseAlarm, SendMigrate
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint

UNLIMITED_HOPS: Final = 2**53
"""``hops_max`` of urgent policies, since requests must leave failed and draining workers."""

Pair = tuple[int, int]
"""Rows of a source and a destination."""


class MigrationGroup(Struct):
    """A group of workers that requests can migrate within, and its policies."""

    name: str
    table: WorkerTable
    policies: tuple[Policy, ...]


class MigrationRound:
    """Migration round of one model.

    Args:
        state: State of the agent.
        knobs: Knobs of the model.
        groups: Groups of the model.
        elsewhere: Failed workers outside these groups.
        listening_since_ms: Time since which the agent receives all reports; silence before it means nothing.
        now: Time in ms.
    """

    def __init__(  # noqa: PLR0917 - one argument for each fact
        self,
        state: AgentState,
        knobs: ModelKnobs,
        groups: Sequence[MigrationGroup],
        elsewhere: Sequence[DomainMember],
        listening_since_ms: int,
        now: int,
    ) -> None:
        self._state = state
        self._model = state.fleet.models[knobs.name]
        self._memory = memory = self._model.migration
        self._in_flight = state.migration.in_flight
        self._advise_only, self._knobs = knobs.no_operation, knobs.migration
        self._groups = groups
        self._now = now
        tables = {group.name: group.table for group in groups}
        self._failures = detect_failures(tables, knobs.migration, elsewhere, listening_since_ms, now)
        self._failures_changed = self._failures.workers != memory.failed
        memory.failed = self._failures.workers
        self._reports = PolicyReports(
            knobs.name, memory, self._in_flight, self._failures.silence_ignored, now, advise_only=knobs.no_operation
        )
        self._migrating = 0
        """Requests in migration that ``migrations_max`` limits."""
        self._commands: list[Command] = []
        """Commands of the last policy."""
        self._effects: list[Effect] = []

    # -- failed and leaving workers ------------------------------------------------------------------------------------

    def alarms(self) -> list[Effect]:
        """Return an alarm for each group in which a failed worker lacks its failure domain, once per group."""
        if not any(lacks_domain(one, self._knobs.failover_domain) for one in self._failures.workers):
            return []
        return [alarm for group in self._groups for alarm in self._domain_alarm(group)]

    def _domain_alarm(self, group: MigrationGroup) -> list[Effect]:
        known = self._memory.groups.get(group.name)
        if known is not None and known.domain_alarm_raised:
            return []
        domain, table = self._knobs.failover_domain, group.table
        failed = (table.workers[row].record for row in table.sorted_rows(self._failures.failed[group.name]))
        name = next((record.worker for record in failed if lacks_domain(FailedWorker.of(record), domain)), None)
        if name is None:
            return []
        self._memory.group(group.name).domain_alarm_raised = True
        text = f"{name} fails alone: failover_domain is {domain}, and its record lacks it; register node and unit"
        return [RaiseAlarm("failover_domain_unknown", self._model.name, text)]

    @cached_property
    def _leaving(self) -> set[MigrationEndpoint]:
        """Workers that drain, or will by a decision that is being committed or announced."""
        entry = self._state.ledger.entries.get(self._model.name)
        decisions = () if entry is None else (entry.pending, entry.decision)
        victims = {
            MigrationEndpoint(target.pool, victim.worker, victim.incarnation)
            for decision in decisions
            if decision is not None
            for target in decision.targets
            for victim in target.victims
        }
        drains = (drain for drain in self._state.drains.open.values() if drain.model == self._model.name)
        return victims | {MigrationEndpoint(drain.pool, drain.worker, drain.incarnation) for drain in drains}

    def _leaving_rows(self, table: WorkerTable) -> Mask:
        found = np.zeros(len(table), dtype=np.bool_)
        for end in self._leaving:
            row = table.row_of(end)
            if row is not None:
                found[row] = True
        return found

    # -- planning ------------------------------------------------------------------------------------------------------

    def plan(self, group: MigrationGroup, rows: Sequence[int] | None) -> list[Effect]:
        """Evaluate the policies of a group and return its commands.

        Args:
            group: The group.
            rows: Rows of the workers that reported; None evaluates all workers.
        """
        table, self._effects, self._commands = group.table, [], []
        if not len(table):
            return []
        reported = None
        if rows is not None:
            if not (rows or self._failures_changed or self._slots_freed()):
                return []
            reported = np.zeros(len(table), dtype=np.bool_)
            reported[list(rows)] = True
        failed = self._failures.domains.affected(table, self._failures.failed[group.name])
        leaving = self._leaving_rows(table)
        in_flight = self._in_flight.of_model(self._model.name)
        table.apply_in_flight(in_flight)
        self._migrating = self._requests_of(in_flight)
        view = self._view(group, failed, leaving)
        for policy in group.policies:
            # The next round computes the effect of all migrations again.
            if self._evaluate(policy, group, view, reported) and policy is not group.policies[-1]:
                view.add_commands(self._commands)
                self._commands = []
        return self._effects

    def _requests_of(self, in_flight: Sequence[InFlightMigration]) -> int:
        """Return the requests in migration that ``migrations_max`` limits.

        Adopted migrations count for at most half the limit: a faulty source that invents some must not block others.
        """
        adopted = sum(one.slots for one in in_flight if one.adopted)
        migrating = sum(one.slots for one in in_flight if not one.adopted)
        return migrating + min(adopted, self._knobs.migrations_max // 2)

    def _slots_freed(self) -> bool:
        """Return True if a migration released slots in this turn."""
        return any(one.slots_freed_at_ms == self._now for one in self._in_flight.of_model(self._model.name))

    def _view(self, group: MigrationGroup, failed: Mask, leaving: Mask) -> LoadView:
        return LoadView(
            group.table,
            self._knobs,
            failed=failed,
            leaving=leaving,
            tpot=group.table.tpot,
            itl_ms=self._model.objectives.itl_ms,
            fresh_after_ms=self._now - self._state.fleet.knobs.stale_after_ms,
            now=self._now,
            remaining_ms=self._remaining_ms,
            next_ready_ms=_next_ready_ms(group.table.pools, self._now),
        )

    def _remaining_ms(self) -> float | None:
        """Return the mean remaining time of a request in ms: half of the mean output at the recent ITL."""
        traffic = self._model.traffic.status(self._now)
        if traffic.osl_tokens is None or traffic.itl_ms is None:
            return None
        return traffic.osl_tokens / 2.0 * traffic.itl_ms

    def _evaluate(self, policy: Policy, group: MigrationGroup, view: LoadView, reported: Mask | None) -> bool:
        """Evaluate a policy; return True if it commanded a migration."""
        if reported is not None and policy.patient:
            return False
        sources = policy.sources(view) & view.with_movable
        idle = not np.count_nonzero(sources)
        consolidation = self._consolidation(policy, group, view, idle=idle)
        if idle:  # as usual: destinations are found only for a report
            obstacle = self._reports.no_source(policy, group.name, view, full_round=reported is None)
            if obstacle is not None:
                self._reports.record(policy, group.name, view, sources, _destinations(policy, view), [], obstacle)
            return False
        destinations, obstacle = _destinations(policy, view), None
        if consolidation is not None:
            sources, obstacle = consolidation.eligible(view, sources, destinations, self._now)
        pair_reports: list[PairReport] = []
        pairs: list[Pair] = []
        if obstacle is None:
            sides = _sides(sources, destinations, None if policy.urgent else reported)
            pairs = self._command_sides(policy, view, sides, pair_reports)
        if reported is not None and not (pair_reports or policy.urgent):
            return False  # no pair includes a worker that reported
        self._reports.record(policy, group.name, view, sources, destinations, pair_reports, obstacle)
        if self._advise_only or not pairs:
            return False
        if consolidation is not None:
            consolidation.join_round([view.table.keys[source][1] for source, _ in pairs], self._knobs, self._now)
        return True

    def _consolidation(
        self, policy: Policy, group: MigrationGroup, view: LoadView, *, idle: bool
    ) -> Consolidation | None:
        """Return the consolidation of a group, evaluated as of now; None if the policy is not patient."""
        if not policy.patient:
            return None
        consolidation = self._memory.group(group.name).consolidation
        consolidation.evaluate_round(view, self._now)
        if idle:
            consolidation.eligible_since_ms = -1
        return consolidation

    def _command_sides(
        self, policy: Policy, view: LoadView, sides: Sequence[tuple[Mask, Mask]], pair_reports: list[PairReport]
    ) -> list[Pair]:
        """Command the migrations that a policy selects from each combination of sources and destinations."""
        pairs: list[Pair] = []
        for sources, destinations in sides:
            if pairs:  # loads stay those of the view, so a destination of one side counts as full for the other
                destinations[[destination for _, destination in pairs]] = False
            if np.count_nonzero(sources) and np.count_nonzero(destinations):
                pairs += self._command_pairs(policy, view, sources, destinations, pair_reports)
        return pairs

    def _command_pairs(
        self, policy: Policy, view: LoadView, sources: Mask, destinations: Mask, pair_reports: list[PairReport]
    ) -> list[Pair]:
        """Command the migrations that a policy selects, report its pairs, and return the planned ones."""
        pairs: list[Pair] = []
        between = view.table.pairs_in_flight
        for source, destination, sized in policy.select(view, sources, destinations, _once(policy.size, between)):
            found = self._within_limit(sized)
            if isinstance(found, MigrationAmount):
                if not self._advise_only:
                    self._command(policy, view, (source, destination), found)
                    between.add((source, destination))
                    self._migrating += found.requests
                pairs.append((source, destination))
                view.reserve(source, destination, found.requests, found.tokens)
            if len(pair_reports) < PAIRS_MAX:
                names = view.table.keys[source][1], view.table.keys[destination][1]
                pair_reports.append(self._reports.pair(*names, found))
            if isinstance(found, NotPlanned) and found.code is MigrationCode.MIGRATIONS_MAX:
                break
        if pairs:
            view.pairs_reserved()
        if pairs and not self._advise_only:
            self._memory.tally.count_command(policy.name, "planned", count=len(pairs))
        return pairs

    def _within_limit(self, found: MigrationAmount | NotPlanned) -> MigrationAmount | NotPlanned:
        """Limit an amount to ``migrations_max`` minus the requests in migration."""
        if isinstance(found, NotPlanned):
            return found
        left = self._knobs.migrations_max - self._migrating
        if left < 1:
            return NotPlanned.of(MigrationCode.MIGRATIONS_MAX, requests=self._migrating)
        if found.requests <= left:
            return found
        return replace(found, requests=left, tokens=found.tokens * left // found.requests)

    def _command(self, policy: Policy, view: LoadView, pair: Pair, amount: MigrationAmount) -> None:
        name, knobs, epoch = self._model.name, self._knobs, self._state.leadership.epoch
        command = Migration(
            command_id=self._in_flight.next_id(name, epoch),
            model=name,
            epoch=epoch,
            source=view.table.endpoint(pair[0]),
            destination=view.table.endpoint(pair[1]),
            trigger=policy.name,
            rule=amount.rule,
            order=amount.order,
            value=amount.value,
            requests_max=amount.requests,
            tokens_max=amount.tokens_max,
            hops_max=UNLIMITED_HOPS if policy.urgent else knobs.hops_max,
        )
        self._in_flight.start(command, amount.requests, amount.tokens, knobs.ttl_ms, self._now)
        self._commands.append((*pair, amount.requests))
        self._effects.append(SendMigrate(command, knobs.ttl_ms, knobs.answer_ms))


def _destinations(policy: Policy, view: LoadView) -> Mask:
    return policy.destinations(view) & view.with_free_in


def _once(size: Sizer, between: set[Pair]) -> Sizer:
    """Return a sizer that refuses pairs of workers with a migration in flight."""

    def size_once(view: LoadView, source: int, destination: int) -> MigrationAmount | NotPlanned:
        if (source, destination) in between:
            return NotPlanned(MigrationCode.IN_FLIGHT)
        return size(view, source, destination)

    return size_once


def _sides(sources: Mask, destinations: Mask, reported: Mask | None) -> list[tuple[Mask, Mask]]:
    """Return sources and destinations to pair: all, or the combinations that include a worker that reported."""
    if reported is None:
        return [(sources, destinations.copy())]
    return [(sources & reported, destinations.copy()), (sources & ~reported, destinations & reported)]


def _next_ready_ms(pools: Mapping[str, Pool], now: int) -> float | None:
    """Return the time until the next pending worker is ready; None if none is pending or it is late."""
    expected = [
        (pool.requested_at_ms[0] if pool.requested_at_ms else pool.scaled_up_at_ms) + min(pool.start_ups_ms)
        for pool in pools.values()
        if pool.start_ups_ms and (pool.requested_at_ms or pool.starting)
    ]
    return min((float(at_ms - now) for at_ms in expected if at_ms >= now), default=None)
