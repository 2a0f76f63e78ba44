"""Handlers of leadership: lease, connections and shutdown."""

from loadline.core.handlers import reading, sharing
from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    CampaignLost,
    LeaderChanged,
    LeadershipWon,
    LeaseRenewalFailed,
    LeaseRenewed,
    ShutdownRequested,
    StoreConnectionChanged,
)


def leadership_won(turn: Turn, event: LeadershipWon) -> list[Effect]:
    """Start to lead if the lease is still valid, and read all decisions from etcd before making new ones."""
    state = turn.state
    effects = state.leadership.won(event, turn.now)
    if state.leading:
        state.count("leaderships_won")
        state.reread_decisions(turn.now)
        if event.deposed:
            text = f"{event.deposed} stopped writing its key, which has no lease, or one that another client may renew"
            effects.append(RaiseAlarm("leader_deposed", "", text))
    return effects


def campaign_lost(turn: Turn, event: CampaignLost) -> None:
    """Record that the campaign failed: another agent leads, or the store was unreachable."""
    turn.state.leadership.lost_campaign(event.leader, event.beat, turn.now)


def lease_renewed(turn: Turn, event: LeaseRenewed) -> None:
    """Extend the term of this leader."""
    turn.state.leadership.renewed(event)


def lease_renewal_failed(turn: Turn, event: LeaseRenewalFailed) -> list[Effect]:
    """Retry the renewal, or step down if the lease is lost."""
    return turn.state.leadership.renewal_failed(event, turn.now)


def leader_changed(turn: Turn, event: LeaderChanged) -> list[Effect]:
    """Step down for another leader, or campaign if there is none; report a store that has lost data."""
    leadership, alarms = turn.state.leadership, turn.state.alarms
    raised: list[Effect] = []
    begins = leadership.becomes_unleased(event)
    if begins or (leadership.unleased and not alarms.is_recent("leader_without_lease", turn.now)):
        text = f"the key of {event.leader} has no lease: no agent wrote it, and none leads while somebody writes it"
        raised.append(RaiseAlarm("leader_without_lease", "", text))
    elif leadership.has_namesake(event) and not alarms.is_recent("agent_name_taken", turn.now):
        text = f"another agent is named {event.leader} too, and leads: status and logs do not tell them apart"
        raised.append(RaiseAlarm("agent_name_taken", "", text))
    effects = leadership.leader_changed(event, turn.now) + raised
    return [reading.store_went_back(turn), *effects] if event.store_went_back else effects


def bus_connection_changed(turn: Turn, event: BusConnectionChanged) -> None:
    """Record that the bus connected or disconnected."""
    turn.state.bus_connected, turn.state.bus_since_ms = event.connected, turn.now
    turn.state.leadership.bus_changed(event.connected, turn.now)
    turn.mark_all_changed()


def store_connection_changed(turn: Turn, event: StoreConnectionChanged) -> None:
    """Record whether the store is connected."""
    turn.state.store_connected = event.connected


def shutdown_requested(turn: Turn, _event: ShutdownRequested) -> None:
    """Make no more decisions; leadership ends with this turn or after the commit in progress."""
    turn.state.stopping = True


def tick(turn: Turn) -> list[Effect]:
    """Campaign, renew, step down or resign as due; at the end of a term, abandon its drains and pending decisions."""
    state = turn.state
    leadership = state.leadership
    # Wait for a commit in progress before the term ends; otherwise its outcome is unknown to the next leader.
    committing = state.leading and any(entry.pending for entry in state.ledger.entries.values())
    if state.stopping and not committing:
        effects = leadership.resign(turn.now)
    else:
        effects = leadership.tick(turn.now)
        if leadership.handing_over and not committing:
            effects += leadership.step_down(turn.now)
    if state.led and not state.leading:
        state.acting_since_ms = -1
        state.drains.abandon(state.fleet, turn.now)
        state.ledger.clear_pending()
    state.led = state.leading
    return effects + sharing.tick(turn)
