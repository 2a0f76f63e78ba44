"""Entry point of the core: it maps events and a time to effects.

A turn handles the events, runs the leader election, plans the models that changed or are due, and advances decisions,
drains and migrations. The core reads no clock, never waits and never raises; the same events at the same times give the
same effects.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.handlers import (
    allocations,
    children,
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
    sharing,
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
    ev.TrafficReported: reports.traffic_reported,
    ev.RegistryRead: reports.registry_read,
    ev.WorkerRegistered: reports.worker_registered,
    ev.WorkerDeregistered: reports.worker_deregistered,
    ev.LeadershipWon: leadership.leadership_won,
    ev.CampaignLost: leadership.campaign_lost,
    ev.LeaseRenewed: leadership.lease_renewed,
    ev.LeaseRenewalFailed: leadership.lease_renewal_failed,
    ev.LeaderChanged: leadership.leader_changed,
    ev.AgentsChanged: sharing.agents_changed,
    ev.PresenceRenewed: sharing.presence_renewed,
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
    ev.ChildNotStarted: children.child_not_started,
    ev.PauseRequested: pauses.pause_requested,
    ev.PausesRead: pauses.pauses_read,
    ev.PauseChanged: pauses.pause_changed,
}


class Scaling(Protocol):
    """Scaling of all models, by this agent or by another program."""

    def plan(self, names: Sequence[str], now: int) -> list[Effect]:
        """Plan models at ``now`` (ms)."""

    def wake_waiting(self, now: int) -> None:
        """Schedule the models that wait for GPUs which are free at ``now`` (ms)."""


class Mode(Struct, frozen=True):
    """Parts of a controller that depend on its mode: scaling and migration, or migration only."""

    scaling: Scaling
    migration: MigrationPipeline
    ignores: frozenset[type[ev.AnyEvent]] = frozenset()
    """Events that another program handles."""
    before_planning: tuple[Tick, ...] = ()
    """Steps of each turn of a leader before its models are planned."""
    after_planning: tuple[Tick, ...] = ()
    """Steps of each turn of a leader after its models were planned."""


def compose(settings: Settings, state: AgentState, planners: dict[str, Planner]) -> Mode:
    """Return the mode that the settings select."""
    if settings.only_migration:
        migration = MigrationPipeline(settings, state, needs_decisions=False)
        return Mode(ExternalScaling(state), migration, ignores=frozenset({ev.DrainRequested}))
    migration = MigrationPipeline(settings, state, needs_decisions=True)
    save = partial(learned_state.save, planners, settings.scope)
    after_planning = (decisions.tick, drains.tick, lambda turn: save(turn.state, turn.now))
    scaling = ScalingPipeline(settings, state, planners)
    return Mode(scaling, migration, before_planning=(reading.tick,), after_planning=after_planning)


class Controller:
    """State machine of an agent: events in, effects out.

    Args:
        settings: Initial settings; later ones arrive as ``SettingsChanged``.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = initial_state(settings)
        self._planners = initial_planners(settings)
        self._mode = compose(settings, self.state, self._planners)

    def handle(self, events: Sequence[ev.AnyEvent], now: int) -> list[AnyEffect]:
        """Handle events that happened up to ``now`` (Unix ms) and return the effects that follow, in order."""
        turn = Turn(self.state, now, len(events))
        effects: list[Effect] = []
        runs: Iterable[tuple[type[ev.AnyEvent], Iterable[Any]]] = groupby(events, type)
        for kind, run in runs:
            if kind is ev.LoadReported:  # most events: they cause no effects, and no mode ignores them
                reports.loads_reported(turn, run)
                continue
            for event in run:
                if kind is ev.SettingsChanged:
                    effects += self._apply_settings(turn, event)
                elif kind not in self._mode.ignores:
                    effects += HANDLERS[kind](turn, event) or ()
        effects += leadership.tick(turn)
        effects += self._tick(turn, self._mode.before_planning)
        learned_state.ingest(self.state, self._planners, turn.learned)
        names = [] if self.state.dormant else turn.to_plan()
        effects += self._mode.scaling.plan(names, now)
        effects += self._tick(turn, self._mode.after_planning)
        if self.leading:
            self._mode.scaling.wake_waiting(now)
        effects += self._mode.migration.plan(names, now)
        for effect in effects:
            if type(effect) is RaiseAlarm:
                self.state.count(f"alarm_{effect.kind}")
                self.state.alarms.add(effect, now)
        return effects  # type: ignore[return-value]  # every Effect is one of AnyEffect

    def _tick(self, turn: Turn, ticks: Sequence[Tick]) -> list[Effect]:
        return [effect for tick in ticks for effect in tick(turn)] if self.leading else []

    def _apply_settings(self, turn: Turn, event: ev.SettingsChanged) -> list[Effect]:
        """Apply new settings, except for the agent's name, scope and leader election, which change by a restart."""
        unassigned = dict(self.state.fleet.unassigned.counts)
        old, new = self.settings, msgspec.json.decode(event.settings, type=Settings)
        self.settings = replace(new, agent=old.agent, scope=old.scope, leadership=old.leadership)
        self.state.config_problem, self.state.restart_for = "", list(event.restart_for)
        self.state.leadership.layout_changed(new.sharing.layout)
        self._planners = settings.settings_changed(turn, self._planners, self.settings)
        self._mode = compose(self.settings, self.state, self._planners)
        return settings.report_unmanaged(self.state, unassigned)

    def next_wake(self) -> int | None:
        """Return the Unix time in ms at which the next turn is due without an event; None if none is."""
        state = self.state
        wakes = [state.leadership.next_wake(), None if state.presence is None else state.presence.next_wake()]
        if not state.dormant:
            wakes.append(min([model.plan_at_ms for model in state.fleet.models.values()], default=None))
        if self.leading:
            wakes += [state.ledger.next_wake(), state.drains.next_wake(), self._mode.migration.next_wake()]
            if self._mode.before_planning:
                wakes.append(reading.next_wake(state))
        return min([wake for wake in wakes if wake is not None], default=None)

    @property
    def planners(self) -> Mapping[str, Planner]:
        """Planner of each model."""
        return self._planners

    def snapshot(self) -> bytes:
        """Return state and planners as JSON."""
        return msgspec.json.encode(self.capture()())

    def capture(self) -> Callable[[], dict[str, Any]]:
        """Copy state and planners; return a function that completes the snapshot, to be called later in any thread."""
        return capture(self.state, self._planners)

    def restore(self, snapshot: bytes) -> None:
        """Replace state and planners by those of a snapshot that was taken under the same settings."""
        self.state, self._planners = decode_snapshot(self.settings, snapshot)
        self._mode = compose(self.settings, self.state, self._planners)

    @property
    def leading(self) -> bool:
        """True if this agent is the leader."""
        return self.state.leading
