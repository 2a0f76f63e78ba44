"""What happens to the processes of agents, and to their connections."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Raw, json
from msgspec.structs import replace

from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision
from loadline.core.vocabulary.events import SettingsChanged
from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo, pick
from loadline.sim.chaos.plan import Fault, calm_from_ms
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent


def agent_paused(nemesis: FaultInjector, strike: Fault) -> Undo:
    """One stands still, as when its host is suspended."""
    return _pause(nemesis.world, pick(_all(nemesis), strike.level), strike)


def agents_paused(nemesis: FaultInjector, strike: Fault) -> Undo:
    """All stand still."""
    return _pause(nemesis.world, _all(nemesis), strike)


def agent_paused_at_commit(nemesis: FaultInjector, strike: Fault) -> Undo:
    """Whoever decides next stands still before it is committed."""
    return _pause_at(nemesis, CommitDecision, strike)


def agent_paused_at_effect(nemesis: FaultInjector, strike: Fault) -> Undo:
    """Whoever does anything next stands still before it is done."""
    return _pause_at(nemesis, None, strike)


def agent_killed(nemesis: FaultInjector, strike: Fault) -> Undo:
    """One is killed, and started again later."""
    return _kill(nemesis.world, pick(_all(nemesis), strike.level))


def agents_killed(nemesis: FaultInjector, strike: Fault) -> Undo:
    """All are killed."""
    del strike
    return _kill(nemesis.world, _all(nemesis))


def agent_stopped(nemesis: FaultInjector, strike: Fault) -> Undo:
    """One is asked to stop (SIGTERM)."""
    return _stop(nemesis.world, pick(_all(nemesis), strike.level))


def agent_stopped_at_commit(nemesis: FaultInjector, strike: Fault) -> Undo:
    """Whoever decides next is asked to stop before it is committed."""

    def stop(agent: SimulatedAgent) -> None:
        nemesis.undo_after(strike.lasts_ms, _stop(nemesis.world, [agent]))

    nemesis.trap(CommitDecision, stop)
    return no_undo


def agent_joins(nemesis: FaultInjector, strike: Fault) -> Undo:
    """There is one more for a while."""
    del strike
    if "agent-more" in nemesis.world.agents:
        return no_undo
    return partial(nemesis.world.kill, nemesis.world.join("agent-more"))


def agent_off_bus(nemesis: FaultInjector, strike: Fault) -> Undo:
    """One sees the store and not the bus."""
    return _cut(pick(_all(nemesis), strike.level), bus=True, store=False)


def agent_off_store(nemesis: FaultInjector, strike: Fault) -> Undo:
    """One sees the bus and not the store."""
    return _cut(pick(_all(nemesis), strike.level), bus=False, store=True)


def agent_off_both(nemesis: FaultInjector, strike: Fault) -> Undo:
    """One sees neither."""
    return _cut(pick(_all(nemesis), strike.level), bus=True, store=True)


def agent_hears_late(nemesis: FaultInjector, strike: Fault) -> Undo:
    """What changes in the store is told to one only later, in order."""
    for agent in pick(_all(nemesis), strike.level):
        agent.store.delay_watches(strike.lasts_ms)
    return no_undo


def agent_reloads(nemesis: FaultInjector, strike: Fault) -> Undo:
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


def _all(nemesis: FaultInjector) -> list[SimulatedAgent]:
    return [agent for _, agent in sorted(nemesis.world.agents.items())]


def _pause(world: ChaosWorld, agents: Sequence[SimulatedAgent], strike: Fault) -> Undo:
    """A pause cannot be undone, so it ends when the calm begins."""
    now_ms = world.timeline.now_ms
    for agent in agents:
        agent.suspend(min(now_ms + strike.lasts_ms, calm_from_ms(now_ms)))
    return no_undo


def _pause_at(nemesis: FaultInjector, kind: type[AnyEffect] | None, strike: Fault) -> Undo:
    nemesis.trap(kind, lambda agent: _pause(nemesis.world, [agent], strike))
    return no_undo


def _kill(world: ChaosWorld, agents: Sequence[SimulatedAgent]) -> Undo:
    for agent in agents:
        world.kill(agent)
    return partial(_start_again, world, agents)


def _stop(world: ChaosWorld, agents: Sequence[SimulatedAgent]) -> Undo:
    for agent in agents:
        world.stop(agent)
    return partial(_start_again, world, agents)


def _start_again(world: ChaosWorld, agents: Sequence[SimulatedAgent]) -> None:
    for agent in agents:
        world.kill(agent)  # it may be stopping still
        world.join_again(agent.name)


def _cut(agents: Sequence[SimulatedAgent], *, bus: bool, store: bool) -> Undo:
    def cut(*, cut: bool) -> None:
        for agent in agents:
            if bus:
                agent.bus.set_partitioned(partitioned=cut)
            if store:
                agent.store.set_partitioned(partitioned=cut)

    cut(cut=True)
    return partial(cut, cut=False)
