"""Choice of the workers that a scale-down removes, by the rule of the platform that removes them."""

from collections.abc import Callable, Sequence

from loadline.core.fleet.pool import DRAINS_MAX, Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.decisions import Decision, Victim
from loadline.core.vocabulary.events import DecisionAnswered

CanMigrate = Callable[[WorkerState], bool]


def select_victims(
    pool: Pool, replicas: int, draining: Sequence[Victim], can_migrate: CanMigrate | None = None
) -> tuple[Victim, ...]:
    """Return the workers that leave if a pool is set to ``replicas``; at most ``DRAINS_MAX``.

    A platform with a rule of its own removes what the rule gives, so its victims are all workers that the count leaves
    out, those that drain already included, and an operator's drain is none of them.

    Args:
        pool: The pool.
        replicas: Count that is decided.
        draining: Workers that drain already.
        can_migrate: As of ``choose_victims``.
    """
    match pool.victim_rule:
        case "newest":
            chosen = _newest(pool, len(pool.workers) - replicas)
        case "highest_ordinal":
            chosen = _highest_ordinals(pool, replicas)
        case "unknown":
            chosen = []
        case _:
            surplus = max(0, pool.ready + pool.starting - replicas)
            chosen = [*draining, *choose_victims(pool, min(surplus, DRAINS_MAX), can_migrate)]
    return tuple(chosen[:DRAINS_MAX])


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


def choose_victims(pool: Pool, count: int, can_migrate: CanMigrate | None = None) -> list[Victim]:
    """Return the ``count`` workers that are cheapest to remove: starting, then least work, then newest, then by name.

    Workers beyond the places of the pool come before: those past their start deadline, then the last that registered.
    Nobody requested them, and they may claim any load, so it must not cost those that were there before their places.

    Args:
        pool: The pool to shrink.
        count: Number of victims.
        can_migrate: Returns True if a worker can migrate its requests away; None: no worker can. Its work is then the
            requests that cannot be migrated, and after these its KV usage, which would be copied.
    """

    def cost(worker: WorkerState) -> tuple[bool, int, int, int, str]:
        load, record = worker.measure_load(), worker.record
        migrates = can_migrate is not None and can_migrate(worker)
        requests = _unmovable_requests(worker) if migrates else load.running + load.waiting
        return (worker.availability == "ready", requests, load.kv_micro, -record.incarnation, record.worker)

    in_service = [worker for worker in pool.workers.values() if worker.availability != "out"]
    excess = max(0, len(in_service) - pool.places)
    arrivals = sorted(in_service, key=lambda worker: (not worker.late, -worker.create_revision, cost(worker)))
    latest = {worker.record.worker for worker in arrivals[: min(excess, count)]}
    chosen = sorted(in_service, key=lambda worker: (worker.record.worker not in latest, cost(worker)))[:count]
    return [_victim(worker) for worker in chosen]


def _unmovable_requests(worker: WorkerState) -> int:
    return sum(sample.unmovable_requests or 0 for sample in worker.latest if sample is not None)


def _newest(pool: Pool, count: int) -> list[Victim]:
    """Return the ``count`` workers that started last, by their incarnations."""
    by_start = sorted(pool.workers.values(), key=lambda worker: (-worker.record.incarnation, worker.record.worker))
    return [_victim(worker) for worker in by_start[: max(0, count)]]


def _highest_ordinals(pool: Pool, replicas: int) -> list[Victim]:
    """Return the workers with the highest numbers, highest first.

    A StatefulSet or LeaderWorkerSet numbers its workers from 0 and keeps the numbers below ``replicas``. Of other
    numbers, no more workers leave than the platform loses.
    """
    leaving = max(len(pool.workers), pool.desired or 0) - replicas
    numbered = ((worker.ordinal, name) for name, worker in pool.workers.items() if worker.ordinal is not None)
    beyond = sorted((-ordinal, name) for ordinal, name in numbered if ordinal >= replicas)
    return [_victim(pool.workers[name]) for _, name in beyond[: max(0, leaving)]]


def _victim(worker: WorkerState) -> Victim:
    return Victim(worker.record.worker, worker.record.incarnation)
