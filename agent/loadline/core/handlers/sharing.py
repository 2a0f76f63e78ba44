"""Handlers of agents that share the models: who lives, and whose reports this agent receives."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.effects import Effect, FollowReports
from loadline.core.vocabulary.events import AgentsChanged, PresenceRenewed


def agents_changed(turn: Turn, event: AgentsChanged) -> None:
    """Rank the live agents for the shard."""
    leadership, presence = turn.state.leadership, turn.state.presence
    leadership.agents_changed(event.agents, turn.now)
    if presence is None or leadership.candidacy is None:
        return
    if leadership.candidacy.agent in event.agents:
        presence.listed()
    else:
        presence.lost(turn.now)


def presence_renewed(turn: Turn, event: PresenceRenewed) -> list[Effect]:
    """Record that other agents see this one, or not."""
    presence = turn.state.presence
    return [] if presence is None else presence.renewed(event.lease_id, turn.now)


def tick(turn: Turn) -> list[Effect]:
    """Show the other agents that this one lives, and follow the reports of the models that it leads or leads next."""
    state = turn.state
    effects: list[Effect] = []
    if state.presence is not None:
        effects += state.presence.leave() if state.stopping else state.presence.tick(turn.now)
    if state.leadership.candidacy is None:
        return effects
    models = sorted(state.fleet.models) if state.leadership.wants_reports else []
    if models != state.followed:
        state.followed = models
        effects.append(FollowReports(models))
    return effects
