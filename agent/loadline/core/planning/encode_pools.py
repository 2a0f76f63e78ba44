"""Encode pools: workers that turn images, audio or video into embeddings, before the prefill of a prompt.

Planners size the workers that compute prompts and tokens, by traffic, latencies and KV caches, which say nothing about
encoders. So they do not see encode pools. These are sized apart, with any planner, by the rules that the saturation
planner has for prefill workers: the share of them that computes, and their queues.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.planner import ModelSettings, Planner
from loadline.core.planning.planners.saturation import SaturationKnobs, SaturationPlanner
from loadline.core.vocabulary.reasons import Recommendation

RULES: Final = SaturationKnobs()


class EncodePools(Struct):
    """Loads of the encode pools of a model."""

    rules: SaturationPlanner = field(default_factory=lambda: SaturationPlanner(RULES))

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool."""
        self.rules.forget_pool(pool)

    def next_wake(self) -> int:
        """Return the time of the next sample."""
        return self.rules.next_wake()

    def add_to(self, found: Recommendation, model: Model, now: int) -> Recommendation:
        """Return the recommendation for the other pools of a model with that for its encode pools."""
        own = self.rules.plan(replace(model, pools=_pools(model, encode=True)), now)
        targets = found.targets | own.targets
        reasons = sorted((*found.reasons, *own.reasons), key=lambda reason: reason.pool not in targets)
        return replace(found, targets=targets, reasons=tuple(reasons), inputs=found.inputs | own.inputs)


def describe_encode_pool(model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
    """Yield sentences that describe the sizing of an encode pool."""
    yield from SaturationPlanner.describe(RULES, model, pool)


def as_seen_by(planner: Planner, model: Model) -> Model:
    """Return a model as its planner sees it: without encode pools, unless it sizes them."""
    if planner.sizes_encode_pools or not any(pool.knobs.role == "encode" for pool in model.pools.values()):
        return model
    return replace(model, pools=_pools(model, encode=False))


def _pools(model: Model, *, encode: bool) -> dict[str, Pool]:
    return {name: pool for name, pool in model.pools.items() if (pool.knobs.role == "encode") is encode}
