"""Faults of workers."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo, partition, pick
from loadline.sim.chaos.plan import Fault
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.timeline import START_MS
from loadline.sim.world.worker import SimulatedWorker

_FLAP_MS: Final = 2_000.0
_OLDER_MS: Final = 10_000


def worker_dies(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill one worker."""
    return _end(pick(_all(injector), fault.level))


def workers_die(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill every second worker."""
    return _end(_half(injector, fault))


def worker_mute(injector: FaultInjector, fault: Fault) -> Undo:
    """Stop the load reports of one worker."""
    return _mute(injector.world, pick(_all(injector), fault.level), fault)


def workers_mute(injector: FaultInjector, fault: Fault) -> Undo:
    """Stop the load reports of every second worker."""
    return _mute(injector.world, _half(injector, fault), fault)


def worker_off_bus(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition one worker from the bus."""
    workers = pick(_all(injector), fault.level)
    return partition(lambda: [worker.bus for worker in workers])


def worker_off_store(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition one worker from the store, so that its lease may expire."""
    workers = pick(_all(injector), fault.level)
    return partition(lambda: [worker.store for worker in workers])


def worker_revoked(injector: FaultInjector, fault: Fault) -> Undo:
    """Revoke one worker's lease."""
    store = injector.world.store
    entries = [entry for key, entry in sorted(store.keys.items()) if "/workers/" in key and entry.lease_id]
    for entry in pick(entries, fault.level) if store.available else ():
        store.revoke(entry.lease_id)
    return no_undo


def worker_flaps(injector: FaultInjector, fault: Fault) -> Undo:
    """Let one worker leave and join every 2 s; the scaler replaces it after the first time."""
    world = injector.world
    flapping = pick(_all(injector), fault.level)

    def flap() -> None:
        if not flapping:
            return
        if flapping[0].alive:
            flapping[0].kill()
        else:
            flapping[0] = _again(world, flapping[0], START_MS + int(world.timeline.now_ms))
        world.timeline.call_later(_FLAP_MS, flap)

    def stop() -> None:
        _end(flapping)
        flapping.clear()

    flap()
    return stop


def worker_old_incarnation(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill one worker and run an earlier incarnation of it for a while."""
    killed = pick(_all(injector), fault.level)
    _end(killed)
    return partial(_end, [_again(injector.world, one, max(0, one.record.incarnation - _OLDER_MS)) for one in killed])


def workers_hang(injector: FaultInjector, fault: Fault) -> Undo:
    """Let draining workers never become empty."""
    del fault

    def set_all(*, hangs: bool) -> None:
        injector.world.drains_hang = hangs
        for worker in _all(injector):
            worker.never_drains = hangs
            worker.advance()

    set_all(hangs=True)
    return partial(set_all, hangs=False)


def workers_never_ready(injector: FaultInjector, fault: Fault) -> Undo:
    """Let new workers never become ready; kill them at the end."""
    del fault
    world = injector.world
    known = {*world.workers, *world.night.sidecars}
    world.new_workers_start = False

    def end() -> None:
        world.new_workers_start = True
        _end([one for one in _all(injector) if one.record.worker not in known and not one.serving])
        for name, sidecar in world.night.sidecars.items():
            if name not in known and not sidecar.engine.starts:
                sidecar.kill()

    return end


def _all(injector: FaultInjector) -> list[SimulatedWorker]:
    return [worker for _, worker in sorted(injector.world.workers.items())]


def _half(injector: FaultInjector, fault: Fault) -> list[SimulatedWorker]:
    return _all(injector)[round(fault.level) :: 2]


def _again(world: ChaosWorld, worker: SimulatedWorker, incarnation: int) -> SimulatedWorker:
    record = worker.record
    return world.start_worker(record.model, record.pool, record.worker, incarnation)


def _end(workers: Sequence[SimulatedWorker]) -> Undo:
    for worker in workers:
        worker.kill()
    return no_undo


def _mute(world: ChaosWorld, workers: Sequence[SimulatedWorker], fault: Fault) -> Undo:
    def until(at_ms: float) -> None:
        for worker in workers:
            worker.silent_until_ms = at_ms

    until(world.timeline.now_ms + fault.duration_ms)
    return partial(until, 0.0)
