"""Fault injection: faults that are undone after a time, and faults that wait for an effect or a migration phase."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from loadline.core.vocabulary.effects import AnyEffect
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent, TurnObserver
from loadline.sim.world.worker import SimulatedWorker
from loadline.wire.messages import MigrateCommand

T = TypeVar("T")
Undo = Callable[[], object]
MigrationTrap = Callable[[SimulatedWorker, SimulatedWorker], object]
"""Called with the source and the destination of a migration."""
_RECENT_COMMANDS_MAX: Final = 8


class Connection(Protocol):
    """Connection of a process that can be partitioned from its server."""

    def set_partitioned(self, *, partitioned: bool) -> None:
        """Partition or reconnect the process."""
        ...


def no_undo() -> None:
    """Do nothing: the fault needs no undo."""


def pick(items: Sequence[T], level: float) -> list[T]:
    """Return one of the items in a list, by a level of 0 to 1; an empty list if there are none."""
    return [items[int(level * len(items)) % len(items)]] if items else []


def partition(connections: Callable[[], Iterable[Connection]]) -> Undo:
    """Partition connections; the undo reconnects those that ``connections`` returns by then."""

    def set_all(*, partitioned: bool) -> None:
        for connection in connections():
            connection.set_partitioned(partitioned=partitioned)

    set_all(partitioned=True)
    return partial(set_all, partitioned=False)


class FaultInjector(TurnObserver):
    """Injector of faults into a world.

    Args:
        world: World to disturb.
    """

    def __init__(self, world: ChaosWorld) -> None:
        self.world = world
        self.injected: dict[str, int] = {}
        """Injected faults by kind."""
        self._undos: dict[int, Undo] = {}
        self._injections = 0
        self._traps: list[tuple[type[AnyEffect] | None, Callable[[SimulatedAgent], object]]] = []
        self._migration_traps: list[tuple[str, MigrationTrap]] = []
        self.recent_commands: deque[MigrateCommand] = deque(maxlen=_RECENT_COMMANDS_MAX)
        """Newest migrate commands that a worker has started."""
        world.observers.append(self)
        world.on_migration_phase.append(self._on_migration_phase)

    def undo_after(self, wait_ms: float, undo: Undo) -> None:
        """Undo a fault after a time, or at the next ``undo_all``."""
        if undo is not no_undo:
            self._injections += 1
            self._undos[self._injections] = undo
            self.world.timeline.call_later(wait_ms, partial(self._undo, self._injections))

    def undo_all(self) -> None:
        """Undo all faults and drop all traps now."""
        for number in list(self._undos):
            self._undo(number)
        self._traps.clear()
        self._migration_traps.clear()

    def _undo(self, number: int) -> None:
        self._undos.pop(number, no_undo)()

    def on_next_effect(self, kind: type[AnyEffect] | None, do: Callable[[SimulatedAgent], object]) -> None:
        """Call ``do`` with the next agent that is about to perform an effect of this kind; None: of any kind."""
        self._traps.append((kind, do))

    def on_next_migration(self, phase: str, do: MigrationTrap) -> None:
        """Call ``do`` with the source and the destination of the next migration that reaches this phase."""
        self._migration_traps.append((phase, do))

    def _on_migration_phase(self, source: SimulatedWorker, phase: str, command: MigrateCommand) -> None:
        if phase == "accepted":
            self.recent_commands.append(command)
        for trap in [trap for trap in self._migration_traps if trap[0] == phase]:
            self._migration_traps.remove(trap)
            destination = self.world.workers.get(command.destination.worker)
            if destination is not None:
                trap[1](source, destination)

    # -- observer ------------------------------------------------------------------------------------------------------

    def before_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Run the traps that wait for this effect."""
        for trap in [trap for trap in self._traps if trap[0] is None or isinstance(effect, trap[0])]:
            self._traps.remove(trap)
            trap[1](agent)
