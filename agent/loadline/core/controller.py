"""The entry point of the core: events and a time in, effects out.

A turn handles the events, keeps the leadership, plans the models that changed or are due, and keeps the ledger, the
drains and the migrations going. Nothing here reads a clock, waits or raises; the same events at the same times give the
same effects.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.handlers import (
    allocations,
    decisions,
    drains,
    forecasts,
    leadership,
    learned,
    migrations,
    pauses,
    reading,
    reports,
    settings,
)
from loadline.core.handlers.turn import Turn
from loadline.core.planning.planners import Planner
from loadline.core.rounds import learned_state
from loadline.core.rounds.external_scaling import ExternalScaling
from loadline.core.rounds.migration import MigrationPipeline
from loadline.core.rounds.scaling.pipeline import ScalingPipeline
from loadline.core.state.agent_state import AgentState, initial_planners, initial_state
from loadline.core.state.settings import Settings
from loadline.core.state.snapshot import capture, decode_snapshot
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.effects import AnyEffect, Effect, RaiseAlarm

Tick = Callable[[Turn], Sequence[Effect]]
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
    ev.MigrationAnswered: migrations.migration_answered,
    ev.MigrationReported: migrations.migration_reported,
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


class Scaling(Protocol):
    """Decides how many workers models have, or leaves that to something else."""

    def plan(self, names: Sequence[str], now: int) -> list[Effect]:
        """Plan models at ``now`` (ms)."""

    def wake_waiting(self, now: int) -> None:
        """Plan the models next that waited for what is free at ``now`` (ms)."""


class Mode(Struct, frozen=True):
    """Composition of a controller: it scales the fleet, or only migrates requests in a fleet that others scale."""

    scaling: Scaling
    migration: MigrationPipeline
    ignores: frozenset[type[ev.AnyEvent]] = frozenset()
    """Events that something else answers."""
    before: tuple[Tick, ...] = ()
    """Run in each turn of a leader, before its models are planned."""
    after: tuple[Tick, ...] = ()
    """Run in each turn of a leader, after its models were planned."""


def compose(settings: Settings, state: AgentState, planners: dict[str, Planner]) -> Mode:
    """Choose the mode of a controller, once."""
    if settings.only_migration:
        migration = MigrationPipeline(settings, state, needs_decisions=False)
        return Mode(ExternalScaling(state), migration, ignores=frozenset({ev.DrainRequested}))
    migration = MigrationPipeline(settings, state, needs_decisions=True)
    save = partial(learned_state.save, planners, settings.scope)
    after = (decisions.tick, drains.tick, lambda turn: save(turn.state, turn.now))
    return Mode(ScalingPipeline(settings, state, planners), migration, before=(reading.tick,), after=after)


class Controller:
    """Drives everything that is decided. ``settings`` is all that it is told from outside the events."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = initial_state(settings)
        self._planners = initial_planners(settings)
        self._mode = compose(settings, self.state, self._planners)

    def handle(self, events: Sequence[ev.AnyEvent], now: int) -> list[AnyEffect]:
        """Handle events that happened up to ``now`` (Unix ms) and return the effects that follow, in order."""
        turn = Turn(self.state, now)
        effects: list[Effect] = []
        for event in events:
            if type(event) is ev.SettingsChanged:
                self._apply_settings(turn, event)
            elif type(event) not in self._mode.ignores:
                effects += HANDLERS[type(event)](turn, event) or ()
        effects += leadership.tick(turn)
        effects += self._tick(turn, self._mode.before)
        learned_state.ingest(self.state, self._planners, turn.learned)
        names = turn.to_plan()
        effects += self._mode.scaling.plan(names, now)
        effects += self._tick(turn, self._mode.after)
        if self.leading:
            self._mode.scaling.wake_waiting(now)
        effects += self._mode.migration.plan(names, now)
        for effect in effects:
            if type(effect) is RaiseAlarm:
                self.state.count(f"alarm_{effect.kind}")
        return effects  # type: ignore[return-value]  # every Effect is one of AnyEffect

    def _tick(self, turn: Turn, ticks: Sequence[Tick]) -> list[Effect]:
        return [effect for tick in ticks for effect in tick(turn)] if self.leading else []

    def _apply_settings(self, turn: Turn, event: ev.SettingsChanged) -> None:
        """Apply other settings; the agent's name and its leadership cannot change."""
        old, new = self.settings, msgspec.json.decode(event.settings, type=Settings)
        self.settings = replace(new, agent=old.agent, scope=old.scope, leadership=old.leadership)
        self.state.config_problem, self.state.restart_for = "", list(event.restart_for)
        self._planners = settings.settings_changed(turn, self._planners, self.settings)
        self._mode = compose(self.settings, self.state, self._planners)

    def next_wake(self) -> int | None:
        """Return when (Unix ms) to call ``handle`` again even if nothing happens; None: only an event matters."""
        state = self.state
        wakes = [state.leadership.next_wake()]
        wakes.append(min((model.plan_at_ms for model in state.fleet.models.values()), default=None))
        if self.leading:
            wakes += [state.ledger.next_wake(), state.drains.next_wake(), self._mode.migration.next_wake()]
            if self._mode.before:
                wakes.append(reading.next_wake(state))
        return min((wake for wake in wakes if wake is not None), default=None)

    def snapshot(self) -> bytes:
        """Return everything that is known, as JSON."""
        return msgspec.json.encode(self.capture()())

    def capture(self) -> Callable[[], dict[str, Any]]:
        """Return a function that finishes what ``snapshot`` returns, to be called later in any thread."""
        return capture(self.state, self._planners)

    def restore(self, snapshot: bytes) -> None:
        """Become the controller that gave this snapshot under the same settings."""
        self.state, self._planners = decode_snapshot(self.settings, snapshot)
        self._mode = compose(self.settings, self.state, self._planners)

    @property
    def leading(self) -> bool:
        """True if this agent decides."""
        return self.state.leading
