"""Choice of the workers that a scale-down removes, by the rule of the platform that removes them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from loadline.core.fleet.moved_workers import home_of, started_in
from loadline.core.fleet.pool import DRAINS_MAX, Pool
from loadline.core.fleet.worker import WorkerState, staying
from loadline.core.vocabulary.decisions import Decision, Victim
from loadline.core.vocabulary.events import DecisionAnswered

CanMigrate = Callable[[WorkerState], bool]


class Removal(Struct, frozen=True):
    """Count and victims of one pool for the scaler that starts and ends its workers."""

    replicas: int
    """Workers that it started and that stay, wherever they serve, and those that it has to start."""
    victims: tuple[Victim, ...]
    """Workers that it has to remove, at most ``DRAINS_MAX``."""


def select_victims(
    pools: Mapping[str, Pool],
    targets: Mapping[str, int],
    draining: Mapping[str, Sequence[Victim]],
    can_migrate: CanMigrate | None = None,
    preferred: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> dict[str, Removal]:
    """Return what each scaler has to do so that ``targets`` workers serve in each pool.

    Where decisions name the victims, a pool that shrinks loses the workers that are cheapest to remove, also those of
    other pools that have moved to it. A platform with a rule of its own removes what the rule gives among the workers
    that it started, so its victims are all that the count leaves out, those that drain already included; an operator's
    drain is none of them.

    Args:
        pools: The pools of a model.
        targets: Count of each pool that should serve in it.
        draining: Workers that drain already, by the pool that started them.
        can_migrate: Returns True if a worker can migrate its requests away, see ``choose_victims``.
        preferred: Workers that a pool should lose first, by pool.
    """
    replicas = {name: targets[name] - pool.moved for name, pool in pools.items()}
    chosen: dict[str, list[Victim]] = {name: list(draining.get(name, ())) for name in pools}
    leaving: list[WorkerState] = []
    for name, pool in pools.items():
        surplus = min(_surplus(pool, targets[name]), DRAINS_MAX)
        leaving += choose_victims(pools, name, surplus, can_migrate, preferred.get(name, ())) if surplus else ()
    leaving.sort(key=lambda worker: bool(worker.counted_from))  # those that have moved last
    for worker in leaving:
        name, home = worker.record.pool, home_of(pools, worker)
        if len(chosen[home]) < DRAINS_MAX:  # otherwise it serves on: a scaler ends what is neither counted nor named
            replicas[home] -= 1  # one that has moved is counted there, and was no part of the count here
            replicas[name] += 1
            chosen[home].append(_victim(worker))
    removals = {}
    for name, pool in pools.items():
        count = max(0, replicas[name])
        match pool.victim_rule:
            case "newest":
                victims = _newest(started_in(pools, name), count)
            case "highest_ordinal":
                victims = _highest_ordinals(started_in(pools, name), pool.decided or 0, count)
            case "unknown":
                victims = []
            case _:
                victims = chosen[name]
        removals[name] = Removal(count, tuple(victims[:DRAINS_MAX]))
    return removals


def misses_rule(decision: Decision, answer: DecisionAnswered) -> bool:
    """Return True if a decision removes workers that the platform of the answering scaler would not remove.

    A refusal without rules, such as of an expired decision, says nothing about them.
    """
    if answer.status == "refused" and not answer.victims:
        return False
    return any(
        answer.victims.get(target.pool, "named") != target.victim_rule
        for target in decision.targets
        if target.victims or target.replicas < target.previous
    )


def choose_victims(
    pools: Mapping[str, Pool],
    name: str,
    count: int,
    can_migrate: CanMigrate | None = None,
    preferred: Collection[str] = (),
) -> list[WorkerState]:
    """Return the ``count`` workers that are cheapest to remove.

    These are unschedulable ones, then starting ones, then preferred ones, then those with the least work, then the
    newest, then by name.
    An unschedulable worker takes no work, so that keeping it instead of another one would leave the pool one short.

    Workers whose platform cannot be told to remove them are left out. Those beyond the places of the pool come before:
    those past their start deadline, then the last that registered. Nobody requested them, and they may claim any load,
    so it must not cost those that were there before their places. Workers that moved from another pool were requested.

    Args:
        pools: The pools of the model.
        name: The pool to shrink.
        count: Number of victims.
        can_migrate: Returns True if a worker can migrate its requests away; None: no worker can. Its work is then the
            requests that cannot be migrated, and after these its KV usage, which would be copied.
        preferred: Workers that the planner wants to lose, whatever their work.
    """

    def cost(worker: WorkerState) -> tuple[bool, bool, bool, int, int, int, str]:
        load, record = worker.measure_load(), worker.record
        migrates = can_migrate is not None and can_migrate(worker)
        requests = _unmovable_requests(worker) if migrates else load.running + load.waiting
        in_use = not worker.unschedulable, worker.availability == "ready", record.worker not in preferred
        return (*in_use, requests, load.kv_micro, -record.incarnation, record.worker)

    pool = pools[name]
    candidates = staying(pool.workers)
    removable = [worker for worker in candidates if _can_be_named(pools, pool, worker)]
    excess = max(0, len(candidates) - pool.places)
    arrivals = sorted(
        removable,
        key=lambda worker: (not worker.overdue, bool(worker.counted_from), -worker.create_revision, cost(worker)),
    )
    latest = {worker.record.worker for worker in arrivals[: min(excess, count)]}
    return sorted(removable, key=lambda worker: (worker.record.worker not in latest, cost(worker)))[:count]


def _surplus(pool: Pool, target: int) -> int:
    """Count the workers that a pool has to lose to have ``target``.

    The scaler counts unschedulable workers, too, so one of them leaves with a smaller count: otherwise the scaler would
    end another worker that nobody has drained. With the same count they are no surplus: they may take work again.
    """
    counted = len(staying(pool.workers)) if target < pool.places else pool.ready + pool.starting
    return max(0, counted - target)


def _can_be_named(pools: Mapping[str, Pool], pool: Pool, worker: WorkerState) -> bool:
    """Return True if a platform can be told to remove a worker of a pool, because that pool shrinks."""
    return pool.can_name_victims and pools[home_of(pools, worker)].can_name_victims


def _unmovable_requests(worker: WorkerState) -> int:
    return sum(sample.unmovable_requests or 0 for sample in worker.latest if sample is not None)


def _newest(workers: Sequence[WorkerState], replicas: int) -> list[Victim]:
    """Return the workers beyond ``replicas`` that started last, by their incarnations."""
    by_start = sorted(workers, key=lambda worker: (-worker.record.incarnation, worker.record.worker))
    return [_victim(worker) for worker in by_start[: max(0, len(workers) - replicas)]]


def _highest_ordinals(workers: Sequence[WorkerState], decided: int, replicas: int) -> list[Victim]:
    """Return the workers with the highest numbers, highest first.

    A StatefulSet or LeaderWorkerSet numbers its workers from 0 and keeps the numbers below ``replicas``. Of other
    numbers, no more workers leave than the platform loses, which has at least ``decided``.
    """
    leaving = max(len(workers), decided) - replicas
    beyond = [worker for worker in workers if worker.ordinal is not None and worker.ordinal >= replicas]
    beyond.sort(key=lambda worker: (-(worker.ordinal or 0), worker.record.worker))
    return [_victim(worker) for worker in beyond[: max(0, leaving)]]


def _victim(worker: WorkerState) -> Victim:
    return Victim(worker.record.worker, worker.record.incarnation)
