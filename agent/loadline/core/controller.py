"""The one door of the core: events and a time in, effects out.

A turn is: take the events, see to leadership, plan the models whose picture changed or that are due, keep the ledger
and the drains going. Nothing here reads a clock, waits or raises; the same events at the same times give the same
effects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from loadline.core.handlers import (
    allocations,
    decisions,
    drains,
    forecasts,
    leadership,
    learned,
    pauses,
    reading,
    reports,
    settings,
)
from loadline.core.handlers import migrations as moves
from loadline.core.handlers.turn import Turn
from loadline.core.rounds import learned_state as learning
from loadline.core.rounds.migration import MigrationPipeline
from loadline.core.rounds.scaling import ScalingPipeline
from loadline.core.state import agent_state as states
from loadline.core.state.settings import Settings
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.effects import AnyEffect, Effect, RaiseAlarm

Handler = Callable[[Turn, Any], Sequence[Effect] | None]

HANDLERS: Final[Mapping[type[ev.AnyEvent], Handler]] = {
    ev.LoadReported: reports.load_reported,
    ev.TrafficReported: reports.traffic_reported,
    ev.RegistryRead: reports.registry_read,
    ev.WorkerRegistered: reports.worker_registered,
    ev.WorkerDeregistered: reports.worker_deregistered,
    ev.LeadershipWon: leadership.leadership_won,
    ev.CampaignLost: leadership.campaign_lost,
    ev.LeaseRenewed: leadership.lease_renewed,
    ev.LeaseRenewalFailed: leadership.lease_renewal_failed,
    ev.LeaderChanged: leadership.leader_changed,
    ev.BusConnectionChanged: leadership.bus_connection_changed,
    ev.StoreConnectionChanged: leadership.store_connection_changed,
    ev.ShutdownRequested: leadership.shutdown_requested,
    ev.DecisionsRead: reading.decisions_read,
    ev.DecisionsUnread: reading.decisions_unread,
    ev.DecisionCommitted: decisions.decision_committed,
    ev.CommitRefused: decisions.commit_refused,
    ev.CommitUnknown: decisions.commit_unknown,
    ev.DecisionAnswered: decisions.decision_answered,
    ev.AnnouncementRequested: decisions.announcement_requested,
    ev.DrainAnswered: drains.drain_answered,
    ev.WorkerDrained: drains.worker_drained,
    ev.DrainRequested: drains.drain_requested,
    ev.MigrationAnswered: moves.migration_answered,
    ev.MigrationReported: moves.migration_reported,
    ev.ForecastFitted: forecasts.forecast_fitted,
    ev.ForecastFailed: forecasts.forecast_failed,
    ev.LearnedRead: learned.learned_read,
    ev.LearnedChanged: learned.learned_changed,
    ev.SettingsRefused: settings.settings_refused,
    ev.AllocationSolved: allocations.allocation_solved,
    ev.AllocationFailed: allocations.allocation_failed,
    ev.PauseRequested: pauses.pause_requested,
    ev.PausesRead: pauses.pauses_read,
    ev.PauseChanged: pauses.pause_changed,
}


class Controller:
    """Drives everything that is decided. ``settings`` is all that it is told from outside the events."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = states.initial_state(settings)
        self._decider = ScalingPipeline(settings, self.state, states.initial_planners(settings))
        self._migration = MigrationPipeline(settings, self.state)

    def handle(self, events: Sequence[ev.AnyEvent], now: int) -> list[AnyEffect]:
        """Take events that happened up to ``now`` (ms) and give the effects that follow, in order."""
        turn = Turn(self.state, now)
        effects: list[Effect] = []
        for event in events:
            if type(event) is ev.SettingsChanged:
                self._obey(turn, event)
                continue
            if type(event) is ev.DrainRequested and self.settings.only_migration:
                continue  # whoever scales the fleet drains
            follow = HANDLERS[type(event)](turn, event)
            if follow:
                effects += follow
        effects += leadership.keep(turn)
        if self.leading and not self.settings.only_migration:
            effects += reading.keep(turn)
        learning.take(self.state, self._decider.planners, turn.learned)
        names = turn.to_plan()
        if self.settings.only_migration:
            self._migration.settle(names, now)
        else:
            effects += self._decide(turn, names)
        effects += self._migration.plan(names, now)
        for effect in effects:
            if type(effect) is RaiseAlarm:
                self.state.count(f"alarm_{effect.kind}")
        return effects  # type: ignore[return-value]  # every Effect is one of AnyEffect

    def _decide(self, turn: Turn, names: Sequence[str]) -> list[Effect]:
        """Decide how many workers there should be, and see to what was decided."""
        effects = self._decider.plan(names, turn.now)
        if self.leading:
            effects += [*decisions.keep(turn), *drains.keep(turn)]
            effects += learning.save(self.state, self._decider.planners, self.settings.scope, turn.now)
            self._decider.wake(turn.now)
        return effects

    def _obey(self, turn: Turn, event: ev.SettingsChanged) -> None:
        """Go by other settings; who this agent is, and how it leads, cannot change."""
        old, new = self.settings, msgspec.json.decode(event.settings, type=Settings)
        self.settings = replace(new, agent=old.agent, scope=old.scope, leadership=old.leadership)
        self.state.config_problem, self.state.restart_for = "", list(event.kept)
        planners = settings.settings_changed(turn, self._decider.planners, self.settings)
        self._decider = ScalingPipeline(self.settings, self.state, planners)
        self._migration = MigrationPipeline(self.settings, self.state)

    def next_wake(self) -> int | None:
        """When (ms) to call ``handle`` again even if nothing happens; None: only an event can change anything."""
        wakes = [self.state.leadership.next_wake(), min(self.state.due.values(), default=None)]
        if self.leading:
            wakes += [self.state.ledger.next_wake(), self.state.drains.next_wake()]
            wakes.append(self.state.migration.next_wake())
            if not (self.state.decisions_read or self.state.reading or self.settings.only_migration):
                wakes.append(self.state.read_at_ms)
        return min((wake for wake in wakes if wake is not None), default=None)

    def snapshot(self) -> bytes:
        """Everything that is known, as JSON."""
        return msgspec.json.encode(self.picture()())

    def picture(self) -> Callable[[], dict[str, Any]]:
        """What ``snapshot`` gives, to be finished and encoded later, in any thread."""
        return states.picture(self.state, self._decider.planners)

    def restore(self, snapshot: bytes) -> None:
        """Become the controller that gave this snapshot under the same settings."""
        self.state, planners = states.decode_snapshot(self.settings, snapshot)
        self._decider = ScalingPipeline(self.settings, self.state, planners)
        self._migration = MigrationPipeline(self.settings, self.state)

    @property
    def leading(self) -> bool:
        """Whether this agent decides."""
        return self.state.leading
