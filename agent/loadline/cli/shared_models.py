"""Answers of agents that share the models, merged into one: each answers for the models that it leads."""

from collections.abc import Sequence

from msgspec.structs import replace

from loadline.core.queries.status import sum_counts
from loadline.core.state.alarms import newest_alarms
from loadline.core.vocabulary.status import AgentStatus, ModelStatus, SharingStatus
from loadline.wire.messages import ExplainReply


def merge_agents(agents: Sequence[AgentStatus]) -> AgentStatus:
    """Return the status of the fleet from those of its agents; it bears the name of the first."""
    first = agents[0]
    if first.sharing is None or len(agents) == 1:
        return first
    models: dict[str, ModelStatus] = {}
    for model in sorted((one for agent in agents for one in agent.models), key=lambda one: one.epoch):
        models[model.model] = model  # an agent that has just lost a model may still report it
    shares = [agent.sharing for agent in agents if agent.sharing is not None]
    live = sorted({name for one in shares for name in one.agents})
    led = sorted({shard for one in shares for shard in one.led})
    return replace(
        first,
        leading=any(agent.leading for agent in agents),
        epoch=max(agent.epoch for agent in agents),
        models=tuple(models[name] for name in sorted(models)),
        rejected=sum_counts(agent.rejected for agent in agents),
        counters=sum_counts(agent.counters for agent in agents),
        gpus=next((agent.gpus for agent in agents if agent.gpus is not None), None),
        supplies=tuple({one.supply: one for agent in agents for one in agent.supplies}.values()),
        sharing=SharingStatus(first.sharing.shards, tuple(led), tuple(live)),
        alarms=newest_alarms(one for agent in agents for one in agent.alarms),
    )


def merge_explanations(replies: Sequence[ExplainReply]) -> ExplainReply:
    """Return the explanations of all agents, newest first, and their reports by model."""
    explanations = sorted((one for reply in replies for one in reply.explanations), key=lambda one: -one.at_ms)
    migrations = sorted((one for reply in replies for one in reply.migrations), key=lambda one: one.model)
    return ExplainReply(explanations, migrations, shared=True)
