"""GPU budget over all models of the agent: growth, shrink and release of GPUs between models.

Each model is planned alone, against the GPUs of all models: current targets, counts being committed, and draining
workers. A growth without free GPUs is kept as a claim, first come, first served. A shrink that the budget's floor
forbids is kept as an offer and pays for a later claim: workers with the fewest GPUs first, the last pool in part. The
offering pool shrinks first, the claiming model grows once the GPUs are free; promised GPUs stay reserved for it. The
order is that of Dynamo's global planner, where one request waits for all offers that pay for it.
"""

from collections.abc import Iterator

from msgspec import Struct, field

from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.planning.allocation.gpu_ledger import GpuLedger, gpus_of, planned_of
from loadline.core.planning.guardrails.constraints import UNBOUNDED, BudgetHeadroom
from loadline.core.planning.guardrails.direction import PoolChange, fit_direction
from loadline.core.planning.guardrails.gpu_band import GpuBand, ceil_div
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.vocabulary.status import GpuBudgetStatus


class GpuClaim(Struct, frozen=True):
    """A growth that waits for GPUs of the budget."""

    workers: dict[str, int]
    """Additional workers by pool."""
    free: int
    """GPUs that were free for the model when it was last planned."""


class ReleaseOffer(Struct, frozen=True):
    """A shrink that the budget's floor forbade."""

    replicas: int
    at_ms: int


class BudgetShares(Struct):
    """Claims and offers matched, in workers and GPUs."""

    promised: dict[str, int] = field(default_factory=dict)
    """GPUs reserved for each claiming model."""
    given: dict[tuple[str, str], int] = field(default_factory=dict)
    """Workers that pools must release for them, by model and pool."""
    given_gpus: int = 0


class FleetBudget(Struct):
    """Claims and offers by model."""

    claims: dict[str, GpuClaim] = field(default_factory=dict)
    offers: dict[str, dict[str, ReleaseOffer]] = field(default_factory=dict)

    def headroom(self, fleet: Fleet, name: str, ledger: GpuLedger | None, now: int) -> BudgetHeadroom:
        """Return what the budget leaves to a model at ``now`` (ms)."""
        if ledger is None or not _bounded(fleet):
            return UNBOUNDED
        most, least = fleet.knobs.gpu_budget_max, fleet.knobs.gpu_budget_min
        total, occupied = sum(ledger.planned.values()), sum(ledger.occupied.values())
        pending, pools = ledger.pending.get(name, {}), fleet.models[name].pools
        shares = BudgetShares() if most is None else self._shares(fleet, ledger, most - total, now)
        given = {pool: count for (model, pool), count in shares.given.items() if model == name}
        ceiling = free = None
        if most is not None:
            others = sum(gpus for model, gpus in shares.promised.items() if model != name)
            room = max(0, most - total + shares.given_gpus - others)
            free = max(0, min(most - occupied, room))
            smallest = gpus_of(fleet.models[name], {pool.name: pool.knobs.replicas_min for pool in pools.values()})
            own = ledger.planned[name]
            ceiling = own + room if total <= most else max(smallest, own * most // total)
        return BudgetHeadroom(
            floor=_floor(fleet, name, ledger, shares, gpus_of(fleet.models[name], given)),
            ceiling=ceiling,
            free=free,
            gives={pool: planned_of(pools[pool], pending, now) - count for pool, count in given.items()},
            gpus=occupied,
            most=most or 0,
            least=least,
        )

    def record_wait(self, fleet: Fleet, model: Model, draft: Proposal, allowance: BudgetHeadroom, now: int) -> None:
        """Record the GPUs that a model waits for, and those that it offers."""
        if allowance == UNBOUNDED:
            return  # as for most agents: to find that nobody waits takes 1 ms of a turn of 100 models
        waiting: dict[str, int] = {}
        offers: dict[str, ReleaseOffer] = {}
        before = self.offers.pop(model.name, {})
        for pool in model.pools.values():
            current, wanted, target = pool.effective_target(now), draft.wanted[pool.name], draft.targets[pool.name]
            if wanted > max(target, current):
                waiting[pool.name] = wanted - max(target, current)
            if pool.name in allowance.gives:
                offer = before.get(pool.name) if target < current else None  # what cannot be given is no offer
            elif wanted < min(target, current):
                offer = ReleaseOffer(wanted, now)
            else:
                offer = before.get(pool.name) if wanted == current else None
            fresh = offer is not None and now - offer.at_ms < fleet.knobs.gpu_offer_ttl_ms
            if offer is not None and fresh and offer.replicas < target and pool.has_quorum(fleet.knobs.quorum_ratio):
                offers[pool.name] = offer
        if offers:
            self.offers[model.name] = offers
        if waiting:
            self.claims[model.name] = GpuClaim(waiting, allowance.free or 0)
        else:
            self.claims.pop(model.name, None)

    def forget(self, name: str) -> None:
        """Forget the claim and the offers of a model for which nothing can be decided."""
        self.claims.pop(name, None)
        self.offers.pop(name, None)

    def models_to_wake(self, fleet: Fleet, ledger: GpuLedger, now: int) -> Iterator[str]:
        """Yield the models whose claimed GPUs are free, and those that must release some."""
        for name, claim in self.claims.items():
            # Only more than it knew of: what it could not use when it was planned it cannot use now.
            if name not in ledger.pending and (self.headroom(fleet, name, ledger, now).free or 0) > claim.free:
                yield name
        for name in self.offers:
            if name not in ledger.pending and self.headroom(fleet, name, ledger, now).gives:
                yield name

    def status(self, fleet: Fleet, ledger: GpuLedger | None, now: int) -> GpuBudgetStatus | None:
        """Return the status of the budget; None where there is none."""
        if ledger is None or not _bounded(fleet):
            return None
        return GpuBudgetStatus(
            gpu_budget_min=fleet.knobs.gpu_budget_min,
            gpu_budget_max=fleet.knobs.gpu_budget_max,
            decided=sum(ledger.planned.values()),
            occupied=sum(ledger.occupied.values()),
            waiting={name: gpus_of(fleet.models[name], claim.workers) for name, claim in self.claims.items()},
            offers={name: sum(gpus for gpus, *_ in self._offered(fleet, name, ledger, now)) for name in self.offers},
        )

    def _shares(self, fleet: Fleet, ledger: GpuLedger, supply: int, now: int) -> BudgetShares:
        """Serve the claims in their order, from the GPUs that are free or coming free and then from the offers."""
        shares = BudgetShares()
        offers = sorted(one for name in self.offers for one in self._offered(fleet, name, ledger, now))
        left = {(model, pool): workers for _, model, pool, workers in offers}
        for name, claim in self.claims.items():
            pools = fleet.models[name].pools
            offered = sum(
                count * fleet.models[model].pools[pool].knobs.gpus_per_worker
                for (model, pool), count in left.items()
                if model != name
            )
            changes = [
                PoolChange(0, count, pools[pool].knobs.gpus_per_worker, 0) for pool, count in claim.workers.items()
            ]
            counts = fit_direction(changes, GpuBand(ceiling=max(0, supply + offered)))
            wanted = sum(count * change.gpus for count, change in zip(counts, changes, strict=True))
            for _, model, pool, _ in offers:
                width = fleet.models[model].pools[pool].knobs.gpus_per_worker
                count = min(left[model, pool], max(0, ceil_div(wanted - supply, width)))
                if model != name and count > 0:
                    left[model, pool] -= count
                    shares.given[model, pool] = shares.given.get((model, pool), 0) + count
                    shares.given_gpus += count * width
                    supply += count * width
            shares.promised[name] = wanted
            supply -= wanted
        return shares

    def _offered(self, fleet: Fleet, name: str, ledger: GpuLedger, now: int) -> Iterator[tuple[int, str, str, int]]:
        """Yield what a model offers, pool by pool: GPUs, model, pool, workers."""
        for pool_name, offer in self.offers.get(name, {}).items():
            pool = fleet.models[name].pools[pool_name]
            workers = planned_of(pool, ledger.pending.get(name, {}), now) - max(offer.replicas, pool.knobs.replicas_min)
            if workers > 0 and now - offer.at_ms < fleet.knobs.gpu_offer_ttl_ms:
                yield workers * pool.knobs.gpus_per_worker, name, pool_name, workers


def _bounded(fleet: Fleet) -> bool:
    """Return True if there is a budget over all models."""
    return fleet.knobs.gpu_budget_max is not None or fleet.knobs.gpu_budget_min > 0


def _floor(fleet: Fleet, name: str, ledger: GpuLedger, shares: BudgetShares, gives: int) -> int | None:
    """Return the GPUs below which a model must not shrink; None: there is no floor."""
    least = fleet.knobs.gpu_budget_min
    if not least:
        return None
    own, total = ledger.planned[name], sum(ledger.planned.values())
    band = GpuBand(least, fleet.knobs.gpu_budget_max)
    if total + sum(shares.promised.values()) >= least - band.tolerance(max(ledger.widest.values())):
        return own - max(0, total - least) - gives
    # Each model raises its part. The guard lets a floor be missed by the widest worker, which here would add up.
    part = ceil_div(own * least, total) if total else ceil_div(least, len(ledger.planned))
    return part + band.tolerance(ledger.widest[name])
