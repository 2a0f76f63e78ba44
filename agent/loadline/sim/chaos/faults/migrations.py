"""Faults of migrations and of the network between workers and frontends."""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from loadline.errors import BusUnavailable
from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo, partition, pick
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
    """Partition the frontend from all workers."""
    del fault
    return partition(lambda: [injector.world.frontend.connection])


def peers_down(injector: FaultInjector, fault: Fault) -> Undo:
    """Stop the bus between workers and frontends."""
    del fault
    injector.world.peer_bus.set_available(available=False)
    return partial(injector.world.peer_bus.set_available, available=True)


def peers_worse(injector: FaultInjector, fault: Fault) -> Undo:
    """Raise the loss, duplication and delay of the bus between workers and frontends."""
    del fault
    return worsen(injector.world.peer_bus)


def worker_off_peers(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition a worker from the other workers and the frontend."""
    return _partition_from_peers(pick([one for _, one in sorted(injector.world.workers.items())], fault.level))


def migrations_hang(injector: FaultInjector, fault: Fault) -> Undo:
    """Let no KV copy end."""
    del fault
    world = injector.world

    def set_all(*, hangs: bool) -> None:
        world.copies_hang = hangs
        for worker in world.workers.values():
            worker.migration.copies_hang = hangs

    set_all(hangs=True)
    return partial(set_all, hangs=False)


def migrations_refused(injector: FaultInjector, fault: Fault) -> Undo:
    """Let all workers refuse incoming migrations."""
    del fault
    world = injector.world

    def set_all(*, refuses: bool) -> None:
        world.migrations_refused = refuses
        for worker in world.workers.values():
            worker.migration.refuses_room = refuses

    set_all(refuses=True)
    return partial(set_all, refuses=False)


def source_dies(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill the source of the next migration in the middle of it."""
    return _during_migration(injector, fault, lambda source, _destination: source.kill())


def destination_dies(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill the destination of the next migration in the middle of it."""
    return _during_migration(injector, fault, lambda _source, destination: destination.kill())


def source_cut(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition the source of the next migration in the middle of it."""
    return _during_migration(
        injector,
        fault,
        lambda source, _destination: injector.undo_after(fault.duration_ms, _partition_from_peers([source])),
    )


def destination_cut(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition the destination of the next migration in the middle of it."""
    return _during_migration(
        injector,
        fault,
        lambda _source, destination: injector.undo_after(fault.duration_ms, _partition_from_peers([destination])),
    )


def frontend_cut(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition the frontend in the middle of the next migration."""
    return _during_migration(
        injector,
        fault,
        lambda _source, _destination: injector.undo_after(fault.duration_ms, frontend_off(injector, fault)),
    )


def stale_migrate_commands(injector: FaultInjector, fault: Fault) -> Undo:
    """Repeat an earlier command: unchanged, of an earlier epoch, and for an earlier incarnation."""
    world = injector.world
    if world.rogue.connected:
        for command in pick(list(injector.recent_commands), fault.level):
            source = replace(command.source, incarnation=max(0, command.source.incarnation - 1))
            for old in (
                command,
                replace(command, command_id=f"{command.command_id}-old", epoch=max(0, command.epoch - 1)),
                replace(command, command_id=f"{command.command_id}-gone", source=source),
            ):
                VirtualTask(_send_command(injector, old))
    return no_undo


async def _send_command(injector: FaultInjector, command: MigrateCommand) -> None:
    try:
        await injector.world.rogue.request(
            _SUBJECTS.migrate(command.model, command.source.pool, command.source.worker), encode(command), 1.0
        )
    except BusUnavailable:
        return


def _during_migration(
    injector: FaultInjector, fault: Fault, do: Callable[[SimulatedWorker, SimulatedWorker], object]
) -> Undo:
    """Call ``do`` at the migration phase that the fault's level selects."""
    injector.on_next_migration(pick(_PHASES, fault.level)[0], do)
    return no_undo


def _partition_from_peers(workers: list[SimulatedWorker]) -> Undo:
    """Partition workers from the other workers and the frontend; connections of dead workers are closed."""
    return partition(lambda: [worker.peers for worker in workers if worker.alive])
