"""Faults of agents and of their connections."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Raw, json
from msgspec.structs import replace

from loadline.core.state.partition import split
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision
from loadline.core.vocabulary.events import SettingsChanged
from loadline.sim.chaos.fault_injector import Connection, FaultInjector, Undo, no_undo, partition, pick
from loadline.sim.chaos.plan import Fault, calm_from_ms
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent


def agent_paused(injector: FaultInjector, fault: Fault) -> Undo:
    """Suspend one agent, as with its host."""
    return _pause(injector.world, pick(_all(injector), fault.level), fault)


def agents_paused(injector: FaultInjector, fault: Fault) -> Undo:
    """Suspend all agents."""
    return _pause(injector.world, _all(injector), fault)


def agent_paused_at_commit(injector: FaultInjector, fault: Fault) -> Undo:
    """Suspend the next agent that decides, before its commit."""
    return _pause_at(injector, CommitDecision, fault)


def agent_paused_at_effect(injector: FaultInjector, fault: Fault) -> Undo:
    """Suspend the next agent that performs any effect, before that effect."""
    return _pause_at(injector, None, fault)


def agent_killed(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill one agent and restart it later."""
    return _kill(injector.world, pick(_all(injector), fault.level))


def agents_killed(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill all agents and restart them later."""
    del fault
    return _kill(injector.world, _all(injector))


def agent_stopped(injector: FaultInjector, fault: Fault) -> Undo:
    """Ask one agent to shut down (SIGTERM)."""
    return _stop(injector.world, pick(_all(injector), fault.level))


def agent_stopped_at_commit(injector: FaultInjector, fault: Fault) -> Undo:
    """Ask the next agent that decides to shut down, before its commit."""

    def stop(agent: SimulatedAgent) -> None:
        injector.undo_after(fault.duration_ms, _stop(injector.world, [agent]))

    injector.on_next_effect(CommitDecision, stop)
    return no_undo


def agent_joins(injector: FaultInjector, fault: Fault) -> Undo:
    """Run one more agent for a while."""
    del fault
    if injector.world.process_of("agent-more"):
        return no_undo
    return partial(injector.world.kill_agent, injector.world.start_agent("agent-more"))


def agent_off_bus(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition one agent from the bus."""
    return _partition(injector, fault, lambda agent: [agent.bus])


def agent_off_store(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition one agent from the store."""
    return _partition(injector, fault, lambda agent: [agent.store])


def agent_off_both(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition one agent from bus and store."""
    return _partition(injector, fault, lambda agent: [agent.bus, agent.store])


def agent_watch_delayed(injector: FaultInjector, fault: Fault) -> Undo:
    """Delay the store's watch of one agent, in order."""
    for agent in pick(_all(injector), fault.level):
        agent.store.delay_watches(fault.duration_ms)
    return no_undo


def agent_clock_jumps(injector: FaultInjector, fault: Fault) -> Undo:
    """Let the clock of one agent jump forward, as at the end of a suspension; it never goes back."""
    for agent in pick(_all(injector), fault.level):
        agent.clock.jump(fault.duration_ms)  # the shards of a process have one clock
        for one in injector.world.process_of(agent.name):
            one.wake()
    return no_undo


def agent_reloads(injector: FaultInjector, fault: Fault) -> Undo:
    """Reload one agent with the same settings, other planners or a model less; later with its own."""
    agents = pick(_all(injector), fault.level)
    change = _SETTINGS[int(fault.duration_ms) % len(_SETTINGS)]

    def reload(change: Callable[[Settings], Settings]) -> None:
        for agent in agents:
            settings = change(injector.world.settings_of(agent.name))
            part = next(one for one in split(settings) if one.scope == agent.controller.settings.scope)
            agent.inbox.put(SettingsChanged(Raw(json.encode(part))))

    reload(change)
    return partial(reload, _unchanged)


def _unchanged(settings: Settings) -> Settings:
    return settings


def _other_planners(settings: Settings) -> Settings:
    other = {"threshold": "kpa", "hpa": "threshold", "kpa": "hpa", "throughput": "queueing"}
    return replace(settings, models=tuple(replace(one, planner=other[one.planner]) for one in settings.models))


def _one_model_less(settings: Settings) -> Settings:
    return replace(settings, models=settings.models[:1])


_SETTINGS: Final[tuple[Callable[[Settings], Settings], ...]] = (_unchanged, _other_planners, _one_model_less)


def _all(injector: FaultInjector) -> list[SimulatedAgent]:
    return [agent for _, agent in sorted(injector.world.agents.items())]


def _pause(world: ChaosWorld, agents: Sequence[SimulatedAgent], fault: Fault) -> Undo:
    """Suspend agents until the end of the fault or the start of the calm phase, as a suspension cannot be undone."""
    now_ms = world.timeline.now_ms
    for agent in agents:
        agent.suspend(min(now_ms + fault.duration_ms, calm_from_ms(now_ms)))
    return no_undo


def _pause_at(injector: FaultInjector, kind: type[AnyEffect] | None, fault: Fault) -> Undo:
    injector.on_next_effect(kind, lambda agent: _pause(injector.world, [agent], fault))
    return no_undo


def _kill(world: ChaosWorld, agents: Sequence[SimulatedAgent]) -> Undo:
    for agent in agents:
        world.kill_agent(agent)
    return partial(_start_again, world, agents)


def _stop(world: ChaosWorld, agents: Sequence[SimulatedAgent]) -> Undo:
    for agent in agents:
        world.stop_agent(agent)
    return partial(_start_again, world, agents)


def _start_again(world: ChaosWorld, agents: Sequence[SimulatedAgent]) -> None:
    for agent in agents:
        world.kill_agent(agent)  # it may still be shutting down
        world.restart_agent(agent.name)


def _partition(
    injector: FaultInjector, fault: Fault, connections: Callable[[SimulatedAgent], Sequence[Connection]]
) -> Undo:
    """Partition these connections of one agent."""
    agents = pick(_all(injector), fault.level)
    return partition(lambda: [connection for agent in agents for connection in connections(agent)])
