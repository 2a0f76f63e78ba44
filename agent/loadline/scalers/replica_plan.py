"""Planning of a replica scaler, pure: from a target and the state of a pool to the replicas to request.

A victim is *free* once it is drained or its drain deadline has passed; until then it is *draining*, and holds the count
up. Workers beyond the target that are no victims go if they are not ready. The others may serve: until the deadline
they stay, so that the agent names and drains them.
"""

import re
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile

from msgspec import Struct

from loadline.core.vocabulary.decisions import PoolTarget, VictimRule
from loadline.scalers.platform import PoolObservation

_LISTED_MAX = 3
"""Workers that a sentence names; an answer's detail has 256 characters."""


class ReplicaPlan(Struct, frozen=True):
    """Next step of a pool."""

    replicas: int
    """Replicas to request; those of the observation if nothing is to be requested."""
    removal: tuple[str, ...] = ()
    """Workers that this scale-down must remove, the first one first. Only for the rule ``named``."""
    done: bool = False
    """True if the target is reached."""
    waits_for: str = ""
    """Reason why it is not, if nothing is to be requested."""


def plan_replicas(
    rule: VictimRule, target: PoolTarget, drained: AbstractSet[str], seen: PoolObservation, *, expired: bool = False
) -> ReplicaPlan:
    """Return the next step of a pool.

    Args:
        rule: Rule by which the platform selects the workers to remove.
        target: Target of the current decision.
        drained: Victims of the target that are drained.
        seen: State of the pool on its platform.
        expired: True once the drain deadline has passed.
    """
    free = frozenset(victim.worker for victim in target.victims) if expired else drained
    order = _removal_order(rule, target, free)
    if seen.workers is None:
        replicas, draining = _plan_unlisted(order, target.replicas, free, seen, at_once=expired or rule == "unknown")
        remaining: Collection[str] = ()
        kept = max(0, replicas - target.replicas)
    else:
        workers = _sort_out(rule, order, target.replicas, free, seen, expired=expired)
        replicas = _plan_listed(rule, target.replicas, workers, seen, expired=expired)
        draining = (*workers.draining, *(workers.missing if workers.kept else ()))
        remaining = set(order) & seen.workers if len(seen.workers) > target.replicas else ()
        kept = workers.kept
        order = [*(w for w in order if w in workers.present and w in free), *workers.idle_names]
    settled = replicas == seen.replicas == target.replicas and not draining and not remaining
    done = settled and (seen.ready is None or seen.ready >= replicas)
    return ReplicaPlan(
        replicas,
        removal=tuple(order) if rule == "named" and replicas < seen.replicas else (),
        done=done,
        waits_for="" if done or replicas != seen.replicas else _reason(target, draining, remaining, kept, seen),
    )


class _ListedWorkers(Struct, frozen=True):
    """Workers that a platform lists, compared with a target."""

    present: AbstractSet[str]
    """Workers that are not ending."""
    victims: AbstractSet[str]
    """Victims among them."""
    draining: Sequence[str]
    """Victims among them that may not be removed yet."""
    removable: int
    """Victims among them that the platform removes before it removes one that is draining."""
    missing: Sequence[str]
    """Draining victims that are not listed, at least not by their names."""
    surplus: int
    """Workers beyond the target that are no victims."""
    kept: int
    """Workers of the surplus that must stay: they may serve, or be missing victims under another name."""
    idle_names: Sequence[str]
    """Workers of the surplus that go, if the platform knows their names."""
    unready: AbstractSet[str] | None
    """Workers that are not ready, if the platform knows their names."""

    @property
    def held(self) -> int:
        """Replicas beyond the target that must stay."""
        return len(self.victims) - self.removable + self.kept

    @property
    def removals(self) -> int:
        """Workers that may be removed by now."""
        return self.removable + self.surplus - self.kept


def _sort_out(
    rule: VictimRule,
    order: Sequence[str],
    replicas: int,
    free: AbstractSet[str],
    seen: PoolObservation,
    *,
    expired: bool,
) -> _ListedWorkers:
    existing = seen.workers or frozenset()
    present = existing - seen.ending
    victims = [worker for worker in order if worker in present]
    missing = [worker for worker in order if worker not in existing and worker not in free]
    surplus = max(0, len(present) - len(victims) - replicas)
    unready = sorted(seen.unready & present - set(victims)) if seen.unready is not None else []
    if expired or rule == "unknown":
        idle = surplus
    else:
        # Victims may be those that are not ready, as far as only a number is known.
        ready = len(present) if seen.ready is None else seen.ready
        known = len(unready) if seen.unready is not None else len(present) - ready - len(victims)
        idle = max(0, min(surplus, known) - len(missing))
    kept = surplus - idle
    return _ListedWorkers(
        present=present,
        victims=frozenset(victims),
        draining=[worker for worker in victims if worker not in free],
        # A worker that may serve may also be newer than the victims.
        removable=0 if rule == "newest" and kept else _leading(victims, free),
        missing=missing,
        surplus=surplus,
        kept=kept,
        idle_names=unready[:idle],
        unready=seen.unready,
    )


def _plan_listed(
    rule: VictimRule, target: int, workers: _ListedWorkers, seen: PoolObservation, *, expired: bool
) -> int:
    """Return the replicas to request."""
    if rule == "highest_ordinal" and not expired:
        lowest = _lowest_by_ordinal(target, workers, seen)
    elif workers.held:
        # No more replicas go than these workers, even if workers that are missing now start before the count is set.
        lowest = max(target + workers.held, max(seen.replicas, len(workers.present)) - workers.removals)
    else:
        lowest = target
    if seen.replicas > lowest:
        return lowest
    # Workers beyond the present count are being removed, the drained ones first, and need no replica any more. A
    # restarted scaler does not know yet that they are drained.
    being_removed = max(0, len(workers.present) - seen.replicas - (len(workers.victims) - len(workers.draining)))
    return max(seen.replicas, target + max(0, len(workers.draining) - being_removed))


def _lowest_by_ordinal(target: int, workers: _ListedWorkers, seen: PoolObservation) -> int:
    """Return the lowest count that removes neither a draining victim nor a worker that the target needs."""
    descending = sorted(workers.present, key=lambda worker: (-_ordinal(worker), worker))
    if not descending:
        return target
    first = seen.first_ordinal
    if first is None:
        # By the workers, which is too high by those that are missing at the start: no worker is below the first one.
        first = max(0, min(_ordinal(descending[-1]), _ordinal(descending[0]) - seen.replicas + 1))
    draining, idle = set(workers.draining), workers.surplus - workers.kept
    for worker in descending:
        unnamed = worker not in workers.victims
        serves = workers.unready is not None and worker not in workers.unready
        if worker in draining or (unnamed and (idle == 0 or serves)):
            return max(target, _ordinal(worker) - first + 1)
        idle -= unnamed
    return target


def _plan_unlisted(
    order: Sequence[str], target: int, free: AbstractSet[str], seen: PoolObservation, *, at_once: bool
) -> tuple[int, Collection[str]]:
    """Return the replicas to request, and the draining victims, of a pool whose workers the platform does not list."""
    draining = [worker for worker in order if worker not in free]
    if at_once or seen.replicas <= target:
        return target, ()
    if seen.replicas > target + len(order):
        # Those beyond the victims may serve, and victims may be those that are not ready.
        ready = seen.replicas if seen.ready is None else seen.ready
        return min(seen.replicas, max(target, ready) + len(order)), draining
    return min(seen.replicas, target + len(order) - _leading(order, free)), draining


def _removal_order(rule: VictimRule, target: PoolTarget, free: AbstractSet[str]) -> list[str]:
    """Return the victims in the order in which the platform removes them."""
    if rule == "unknown":
        return []
    if rule == "named":
        return [v.worker for v in sorted(target.victims, key=lambda v: (v.worker not in free, v.worker))]
    if rule == "newest":
        return [v.worker for v in sorted(target.victims, key=lambda v: (-v.incarnation, v.worker))]
    return [v.worker for v in sorted(target.victims, key=lambda v: (-_ordinal(v.worker), v.worker))]


def _leading(order: Sequence[str], free: AbstractSet[str]) -> int:
    """Count the workers that may be removed before the first that may not."""
    return len(list(takewhile(free.__contains__, order)))


def _ordinal(worker: str) -> int:
    """Return the number at the end of a name; -1: it has none, and such a worker is never removed."""
    found = re.search(r"[0-9]{1,9}$", worker)
    return int(found[0]) if found else -1


def _reason(
    target: PoolTarget, draining: Collection[str], remaining: Collection[str], kept: int, seen: PoolObservation
) -> str:
    if draining:
        reason = f"{_listed(draining)} must drain"
    elif kept:
        reason = f"{kept} of its workers beyond the target may serve; the agent must name them"
    elif remaining:
        reason = f"the platform must remove {_listed(remaining)}"
    elif seen.replicas != target.replicas:
        reason = "the platform would remove other workers than the victims"
    else:
        reason = f"{seen.ready} of {target.replicas} replicas are ready"
    return f"{reason}: {seen.detail}" if seen.detail else reason


def _listed(workers: Collection[str]) -> str:
    named = sorted(workers)
    more = f" and {len(named) - _LISTED_MAX} more" if len(named) > _LISTED_MAX else ""
    return ", ".join(named[:_LISTED_MAX]) + more
