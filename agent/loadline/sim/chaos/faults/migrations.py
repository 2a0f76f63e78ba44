"""What happens to requests while they move, and to the network on which they do."""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from loadline.errors import BusUnavailable
from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo, pick
from loadline.sim.chaos.faults.servers import worsen
from loadline.sim.chaos.plan import Fault
from loadline.sim.world.tasks import VirtualTask
from loadline.sim.world.worker import SimulatedWorker
from loadline.wire.codec import encode
from loadline.wire.messages import MigrateCommand
from loadline.wire.subjects import Subjects

_SUBJECTS: Final = Subjects("loadline")
_PHASES: Final = ("admitted", "copying", "switching", "switching", "switched")


def frontend_off(injector: FaultInjector, fault: Fault) -> Undo:
    """The frontend is cut off from all workers."""
    del fault
    port = injector.world.frontend.connection
    port.set_partitioned(partitioned=True)
    return partial(port.set_partitioned, partitioned=False)


def peers_down(injector: FaultInjector, fault: Fault) -> Undo:
    """No worker reaches another, or the frontend."""
    del fault
    injector.world.peer_bus.set_available(available=False)
    return partial(injector.world.peer_bus.set_available, available=True)


def peers_worse(injector: FaultInjector, fault: Fault) -> Undo:
    """What they say is lost, doubled and late some times as often."""
    del fault
    return worsen(injector.world.peer_bus)


def worker_off_peers(injector: FaultInjector, fault: Fault) -> Undo:
    """A worker sees bus and store, and neither the frontend nor the others."""
    return _cut(pick([one for _, one in sorted(injector.world.workers.items())], fault.level))


def moves_hang(injector: FaultInjector, fault: Fault) -> Undo:
    """No copy that begins now ever ends."""
    del fault
    world = injector.world

    def set_all(*, hangs: bool) -> None:
        world.copies_hang = hangs
        for worker in world.workers.values():
            worker.mover.hangs = hangs

    set_all(hangs=True)
    return partial(set_all, hangs=False)


def moves_refused(injector: FaultInjector, fault: Fault) -> Undo:
    """No worker has room for what others move."""
    del fault
    world = injector.world

    def set_all(*, refuses: bool) -> None:
        world.migrations_refused = refuses
        for worker in world.workers.values():
            worker.mover.intake.refuses = refuses

    set_all(refuses=True)
    return partial(set_all, refuses=False)


def source_dies(injector: FaultInjector, fault: Fault) -> Undo:
    """The source of the next move dies in the middle of it."""
    return _in_a_move(injector, fault, lambda source, _destination: source.kill())


def destination_dies(injector: FaultInjector, fault: Fault) -> Undo:
    """The destination of the next move dies in the middle of it."""
    return _in_a_move(injector, fault, lambda _source, destination: destination.kill())


def source_cut(injector: FaultInjector, fault: Fault) -> Undo:
    """The source of the next move is cut off in the middle of it, for a while."""
    return _in_a_move(
        injector, fault, lambda source, _destination: injector.undo_after(fault.duration_ms, _cut([source]))
    )


def destination_cut(injector: FaultInjector, fault: Fault) -> Undo:
    """The destination of the next move is cut off in the middle of it, for a while."""
    return _in_a_move(
        injector, fault, lambda _source, destination: injector.undo_after(fault.duration_ms, _cut([destination]))
    )


def frontend_cut(injector: FaultInjector, fault: Fault) -> Undo:
    """The frontend is cut off in the middle of the next move, for a while."""
    return _in_a_move(
        injector,
        fault,
        lambda _source, _destination: injector.undo_after(fault.duration_ms, frontend_off(injector, fault)),
    )


def commands_of_old(injector: FaultInjector, fault: Fault) -> Undo:
    """A command that was heard comes again: as it was, of an earlier term, or for an earlier life."""
    world = injector.world
    if world.rogue.connected:
        for command in pick(list(injector.recent_commands), fault.level):
            source = replace(command.source, incarnation=max(0, command.source.incarnation - 1))
            for old in (
                command,
                replace(command, command_id=f"{command.command_id}-old", epoch=max(0, command.epoch - 1)),
                replace(command, command_id=f"{command.command_id}-gone", source=source),
            ):
                VirtualTask(_say(injector, old))
    return no_undo


async def _say(injector: FaultInjector, command: MigrateCommand) -> None:
    try:
        await injector.world.rogue.request(_SUBJECTS.migrate(command.source.worker), encode(command), 1.0)
    except BusUnavailable:
        return


def _in_a_move(injector: FaultInjector, fault: Fault, do: Callable[[SimulatedWorker, SimulatedWorker], object]) -> Undo:
    """At which phase, the level says."""
    injector.on_next_migration(pick(_PHASES, fault.level)[0], do)
    return no_undo


def _cut(workers: list[SimulatedWorker]) -> Undo:
    def cut(*, cut: bool) -> None:
        for worker in workers:
            if worker.alive:
                worker.peers.set_partitioned(partitioned=cut)

    cut(cut=True)
    return partial(cut, cut=False)
