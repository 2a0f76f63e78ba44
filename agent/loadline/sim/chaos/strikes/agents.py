"""What happens to the processes of agents, and to their connections."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Raw, json
from msgspec.structs import replace

from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision
from loadline.core.vocabulary.events import SettingsChanged
from loadline.sim.chaos.nemesis import Nemesis, Undo, nothing, pick
from loadline.sim.chaos.plan import Strike, calm_from_ms
from loadline.sim.chaos.world import World
from loadline.sim.world.agent import AgentProcess


def agent_paused(nemesis: Nemesis, strike: Strike) -> Undo:
    """One stands still, as when its host is suspended."""
    return _pause(nemesis.world, pick(_all(nemesis), strike.level), strike)


def agents_paused(nemesis: Nemesis, strike: Strike) -> Undo:
    """All stand still."""
    return _pause(nemesis.world, _all(nemesis), strike)


def agent_paused_at_commit(nemesis: Nemesis, strike: Strike) -> Undo:
    """Whoever decides next stands still before it is committed."""
    return _pause_at(nemesis, CommitDecision, strike)


def agent_paused_at_effect(nemesis: Nemesis, strike: Strike) -> Undo:
    """Whoever does anything next stands still before it is done."""
    return _pause_at(nemesis, None, strike)


def agent_killed(nemesis: Nemesis, strike: Strike) -> Undo:
    """One is killed, and started again later."""
    return _kill(nemesis.world, pick(_all(nemesis), strike.level))


def agents_killed(nemesis: Nemesis, strike: Strike) -> Undo:
    """All are killed."""
    del strike
    return _kill(nemesis.world, _all(nemesis))


def agent_stopped(nemesis: Nemesis, strike: Strike) -> Undo:
    """One is asked to stop (SIGTERM)."""
    return _stop(nemesis.world, pick(_all(nemesis), strike.level))


def agent_stopped_at_commit(nemesis: Nemesis, strike: Strike) -> Undo:
    """Whoever decides next is asked to stop before it is committed."""

    def stop(agent: AgentProcess) -> None:
        nemesis.undo_after(strike.lasts_ms, _stop(nemesis.world, [agent]))

    nemesis.trap(CommitDecision, stop)
    return nothing


def agent_joins(nemesis: Nemesis, strike: Strike) -> Undo:
    """There is one more for a while."""
    del strike
    if "agent-more" in nemesis.world.agents:
        return nothing
    return partial(nemesis.world.kill, nemesis.world.join("agent-more"))


def agent_off_bus(nemesis: Nemesis, strike: Strike) -> Undo:
    """One sees the store and not the bus."""
    return _cut(pick(_all(nemesis), strike.level), bus=True, store=False)


def agent_off_store(nemesis: Nemesis, strike: Strike) -> Undo:
    """One sees the bus and not the store."""
    return _cut(pick(_all(nemesis), strike.level), bus=False, store=True)


def agent_off_both(nemesis: Nemesis, strike: Strike) -> Undo:
    """One sees neither."""
    return _cut(pick(_all(nemesis), strike.level), bus=True, store=True)


def agent_hears_late(nemesis: Nemesis, strike: Strike) -> Undo:
    """What changes in the store is told to one only later, in order."""
    for agent in pick(_all(nemesis), strike.level):
        agent.store.lag(strike.lasts_ms)
    return nothing


def agent_reloads(nemesis: Nemesis, strike: Strike) -> Undo:
    """One is told other settings: the same again, other planners, or a model less; and later its own."""
    agents = pick(_all(nemesis), strike.level)
    change = _SETTINGS[int(strike.lasts_ms) % len(_SETTINGS)]

    def tell(change: Callable[[Settings], Settings]) -> None:
        for agent in agents:
            settings = change(nemesis.world.told(agent.name))
            agent.inbox.put(SettingsChanged(Raw(json.encode(settings))))

    tell(change)
    return partial(tell, _the_same)


def _the_same(settings: Settings) -> Settings:
    return settings


def _other_planners(settings: Settings) -> Settings:
    other = {"threshold": "kpa", "hpa": "threshold", "kpa": "hpa"}
    return replace(settings, models=tuple(replace(one, planner=other[one.planner]) for one in settings.models))


def _a_model_less(settings: Settings) -> Settings:
    return replace(settings, models=settings.models[:1])


_SETTINGS: Final[tuple[Callable[[Settings], Settings], ...]] = (_the_same, _other_planners, _a_model_less)


def _all(nemesis: Nemesis) -> list[AgentProcess]:
    return [agent for _, agent in sorted(nemesis.world.agents.items())]


def _pause(world: World, agents: Sequence[AgentProcess], strike: Strike) -> Undo:
    """A pause cannot be undone, so it ends when the calm begins."""
    now_ms = world.timeline.now_ms
    for agent in agents:
        agent.pause(min(now_ms + strike.lasts_ms, calm_from_ms(now_ms)))
    return nothing


def _pause_at(nemesis: Nemesis, kind: type[AnyEffect] | None, strike: Strike) -> Undo:
    nemesis.trap(kind, lambda agent: _pause(nemesis.world, [agent], strike))
    return nothing


def _kill(world: World, agents: Sequence[AgentProcess]) -> Undo:
    for agent in agents:
        world.kill(agent)
    return partial(_start_again, world, agents)


def _stop(world: World, agents: Sequence[AgentProcess]) -> Undo:
    for agent in agents:
        world.stop(agent)
    return partial(_start_again, world, agents)


def _start_again(world: World, agents: Sequence[AgentProcess]) -> None:
    for agent in agents:
        world.kill(agent)  # it may be stopping still
        world.join_again(agent.name)


def _cut(agents: Sequence[AgentProcess], *, bus: bool, store: bool) -> Undo:
    def cut(*, cut: bool) -> None:
        for agent in agents:
            if bus:
                agent.bus.set_cut(cut=cut)
            if store:
                agent.store.set_cut(cut=cut)

    cut(cut=True)
    return partial(cut, cut=False)
