"""GPU budget over all models of the agent: growth, shrink and release of GPUs between models.

Each model is planned alone, against the GPUs of all models: current targets, counts being committed, and draining
workers. A growth without free GPUs is recorded as a claim, first come, first served. A shrink that the budget's minimum
forbids is recorded as an offer, and so are workers that the load does not need. Later claims use offers: workers with
the fewest GPUs first, the last pool in part. The offering pool shrinks first, the claiming model grows once the GPUs
are free; promised GPUs are reserved for it. The order is that of Dynamo's global planner, where a request waits for all
offers that it needs.
"""

from collections.abc import Iterator

from msgspec import Struct, field

from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.planning.allocation.gpu_ledger import GpuLedger, gpus_of, planned_of
from loadline.core.planning.guardrails.constraints import UNBOUNDED, BudgetHeadroom
from loadline.core.planning.guardrails.gpu_band import GpuBand, ceil_div
from loadline.core.planning.guardrails.pool_changes import PoolChange, fit_direction
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.vocabulary.status import GpuBudgetStatus


class GpuClaim(Struct, frozen=True):
    """A growth that waits for GPUs of the budget."""

    workers: dict[str, int]
    """Additional workers by pool."""
    free: int
    """GPUs that were free for the model when it was last planned."""


class ReleaseOffer(Struct, frozen=True):
    """A shrink that the minimum of the budget forbids, or that of unneeded workers."""

    replicas: int
    at_ms: int
    is_unneeded: bool = False
    """True if the planner has not recommended the shrink, but its load does not need these workers."""


class BudgetShares(Struct):
    """Claims matched with offers, in workers and GPUs."""

    promised: dict[str, int] = field(default_factory=dict)
    """GPUs reserved for each claiming model."""
    released: dict[tuple[str, str], int] = field(default_factory=dict)
    """Workers that pools must release for the claims, by model and pool."""
    released_gpus: int = 0


class FleetBudget(Struct):
    """Claims and offers by model."""

    claims: dict[str, GpuClaim] = field(default_factory=dict)
    offers: dict[str, dict[str, ReleaseOffer]] = field(default_factory=dict)

    def headroom(self, fleet: Fleet, name: str, ledger: GpuLedger | None, now: int) -> BudgetHeadroom:
        """Return the headroom of a model in the budget at ``now`` (ms)."""
        if ledger is None or not _bounded(fleet):
            return UNBOUNDED
        gpus_max, gpus_min = fleet.knobs.gpu_budget_max, fleet.knobs.gpu_budget_min
        total, occupied = sum(ledger.planned.values()), sum(ledger.occupied.values())
        pending, pools = ledger.pending.get(name, {}), fleet.models[name].pools
        shares = BudgetShares() if gpus_max is None else self._shares(fleet, ledger, gpus_max - total, now)
        released = {pool: count for (model, pool), count in shares.released.items() if model == name}
        ceiling = free = None
        if gpus_max is not None:
            promised = sum(gpus for model, gpus in shares.promised.items() if model != name)
            unplanned = max(0, gpus_max - total + shares.released_gpus - promised)
            free = max(0, min(gpus_max - occupied, unplanned))
            smallest = gpus_of(fleet.models[name], {pool.name: pool.knobs.replicas_min for pool in pools.values()})
            own = ledger.planned[name]
            ceiling = own + unplanned if total <= gpus_max else max(smallest, own * gpus_max // total)
        return BudgetHeadroom(
            floor=_floor(fleet, name, ledger, shares, gpus_of(fleet.models[name], released)),
            ceiling=ceiling,
            free=free,
            releases={pool: planned_of(pools[pool], pending, now) - count for pool, count in released.items()},
            unneeded=frozenset(pool for pool in released if self.offers[name][pool].is_unneeded),
            occupied=occupied,
            gpus_max=gpus_max or 0,
            gpus_min=gpus_min,
        )

    def record_wait(self, fleet: Fleet, model: Model, proposal: Proposal, headroom: BudgetHeadroom, now: int) -> None:
        """Record the claim and the offers of a model after its guardrails have applied."""
        if headroom == UNBOUNDED:
            return  # saves 1 ms of a turn of 100 models, as most agents have no budget
        waiting: dict[str, int] = {}
        offers: dict[str, ReleaseOffer] = {}
        before = self.offers.pop(model.name, {})
        for pool in model.pools.values():
            current, wanted, target = (
                pool.effective_target(now),
                proposal.wanted[pool.name],
                proposal.targets[pool.name],
            )
            # A claim for workers that the load does not need would take those of others, which claim them in turn.
            claimed = min(wanted, proposal.needed.get(pool.name, wanted))
            if claimed > max(target, current):
                waiting[pool.name] = claimed - max(target, current)
            if pool.name in headroom.releases:
                offer = before.get(pool.name) if target < current else None  # drop an offer that cannot be released
            elif wanted < min(target, current):
                offer = ReleaseOffer(wanted, now)
            elif proposal.needed.get(pool.name, wanted) < wanted:
                offer = ReleaseOffer(proposal.needed[pool.name], now, is_unneeded=True)
            else:
                known = before.get(pool.name)
                offer = known if known is not None and wanted == current and not known.is_unneeded else None
            fresh = offer is not None and now - offer.at_ms < fleet.knobs.gpu_offer_ttl_ms
            if offer is not None and fresh and offer.replicas < target and pool.has_quorum(fleet.knobs.quorum_ratio):
                offers[pool.name] = offer
        if offers:
            self.offers[model.name] = offers
        if waiting:
            self.claims[model.name] = GpuClaim(waiting, headroom.free or 0)
        else:
            self.claims.pop(model.name, None)

    def forget(self, name: str) -> None:
        """Forget the claim and the offers of a model for which nothing can be decided."""
        self.claims.pop(name, None)
        self.offers.pop(name, None)

    def models_to_wake(self, fleet: Fleet, ledger: GpuLedger, now: int) -> Iterator[str]:
        """Yield the models whose claimed GPUs are free, and those that must release some."""
        for name, claim in self.claims.items():
            # GPUs that were free when the model was last planned did not suffice, so only additional ones matter.
            if name not in ledger.pending and (self.headroom(fleet, name, ledger, now).free or 0) > claim.free:
                yield name
        for name in self.offers:
            if name not in ledger.pending and self.headroom(fleet, name, ledger, now).releases:
                yield name

    def status(self, fleet: Fleet, ledger: GpuLedger | None, now: int) -> GpuBudgetStatus | None:
        """Return the status of the budget; None without a budget."""
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
        """Serve the claims in order, first from unplanned GPUs (``supply``), then from offers."""
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
                    shares.released[model, pool] = shares.released.get((model, pool), 0) + count
                    shares.released_gpus += count * width
                    supply += count * width
            shares.promised[name] = wanted
            supply -= wanted
        return shares

    def _offered(self, fleet: Fleet, name: str, ledger: GpuLedger, now: int) -> Iterator[tuple[int, str, str, int]]:
        """Yield the offers of a model by pool: GPUs, model, pool, workers."""
        for pool_name, offer in self.offers.get(name, {}).items():
            pool = fleet.models[name].pools[pool_name]
            workers = planned_of(pool, ledger.pending.get(name, {}), now) - max(offer.replicas, pool.knobs.replicas_min)
            if workers > 0 and now - offer.at_ms < fleet.knobs.gpu_offer_ttl_ms:
                yield workers * pool.knobs.gpus_per_worker, name, pool_name, workers


def _bounded(fleet: Fleet) -> bool:
    """Return True if there is a budget over all models."""
    return fleet.knobs.gpu_budget_max is not None or fleet.knobs.gpu_budget_min > 0


def _floor(fleet: Fleet, name: str, ledger: GpuLedger, shares: BudgetShares, released: int) -> int | None:
    """Return the minimum GPUs of a model, which releases ``released`` GPUs; None without a minimum."""
    gpus_min = fleet.knobs.gpu_budget_min
    if not gpus_min:
        return None
    own, total = ledger.planned[name], sum(ledger.planned.values())
    band = GpuBand(gpus_min, fleet.knobs.gpu_budget_max)
    if total + sum(shares.promised.values()) >= gpus_min - band.tolerance(max(ledger.widest.values())):
        return own - max(0, total - gpus_min) - released
    # Each model grows to its share. The tolerance of the guardrail, the widest worker, is added, since otherwise the
    # shortfalls of all models would add up.
    share = ceil_div(own * gpus_min, total) if total else ceil_div(gpus_min, len(ledger.planned))
    return share + band.tolerance(ledger.widest[name])
