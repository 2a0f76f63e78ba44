"""Carries out what goes wrong: what is undone in time, and traps for agents that are about to do something."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from loadline.core.vocabulary.effects import AnyEffect
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent, TurnObserver
from loadline.sim.world.worker import SimulatedWorker
from loadline.wire.messages import MigrateCommand

T = TypeVar("T")
Undo = Callable[[], object]
MigrationTrap = Callable[[SimulatedWorker, SimulatedWorker], object]
"""Takes the source and the destination of a move."""
_COMMANDS_KEPT: Final = 8


def no_undo() -> None:
    """There is nothing to undo."""


def pick(those: Sequence[T], level: float) -> list[T]:
    """One of them, by the level 0..1; none of none."""
    return [those[int(level * len(those)) % len(those)]] if those else []


class FaultInjector(TurnObserver):
    """Strikes a world.

    Args:
        world: What is struck.
    """

    def __init__(self, world: ChaosWorld) -> None:
        self.world = world
        self.injected: dict[str, int] = {}
        """How often each kind was carried out."""
        self._undos: dict[int, Undo] = {}
        self._injections = 0
        self._traps: list[tuple[type[AnyEffect] | None, Callable[[SimulatedAgent], object]]] = []
        self._migration_traps: list[tuple[str, MigrationTrap]] = []
        self.recent_commands: deque[MigrateCommand] = deque(maxlen=_COMMANDS_KEPT)
        """The newest ones that were begun."""
        world.observers.append(self)
        world.on_migration_phase.append(self._on_migration_phase)

    def undo_after(self, wait_ms: float, undo: Undo) -> None:
        """Undo it then, or when everything is healed."""
        if undo is not no_undo:
            self._injections += 1
            self._undos[self._injections] = undo
            self.world.timeline.call_later(wait_ms, partial(self._undo, self._injections))

    def undo_all(self) -> None:
        """Undo everything that is left, at once."""
        for number in list(self._undos):
            self._undo(number)
        self._traps.clear()
        self._migration_traps.clear()

    def _undo(self, number: int) -> None:
        self._undos.pop(number, no_undo)()

    def on_next_effect(self, kind: type[AnyEffect] | None, do: Callable[[SimulatedAgent], object]) -> None:
        """Do it to the next agent that is about to perform an effect of this kind; None: of any kind."""
        self._traps.append((kind, do))

    def on_next_migration(self, phase: str, do: MigrationTrap) -> None:
        """Do it to the source and the destination of the next move that comes to this phase."""
        self._migration_traps.append((phase, do))

    def _on_migration_phase(self, source: SimulatedWorker, phase: str, command: MigrateCommand) -> None:
        if phase == "accepted":
            self.recent_commands.append(command)
        for trap in [trap for trap in self._migration_traps if trap[0] == phase]:
            self._migration_traps.remove(trap)
            destination = self.world.workers.get(command.destination.worker)
            if destination is not None:
                trap[1](source, destination)

    # -- as a watcher --------------------------------------------------------------------------------------------------

    def before_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Spring the traps that wait for this."""
        for trap in [trap for trap in self._traps if trap[0] is None or isinstance(effect, trap[0])]:
            self._traps.remove(trap)
            trap[1](agent)
