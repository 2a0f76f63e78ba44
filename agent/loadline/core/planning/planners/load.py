"""The load planner: scales by the latency that each worker's load gives.

A line from load to latency is fitted to recent samples: prompt tokens to TTFT for prefill, KV blocks to ITL for decode.
Its inverse is the load with which a worker just meets its objective. As with Dynamo's load planner a pool grows when
*all* workers have more, and shrinks by one when all have less than what that leaves for one worker less, times
``scaling_down_sensitivity_ratio``; of aggregated workers either kind of work adds, and only both remove. Differences:

- A sample is acted on in the turn in which it arrives, with at most one change in an interval.
- Pending workers take their share of the load in advance, so a pool keeps growing only if they will not suffice.
- Loads count as they rise, and a pool grows by the workers they need, at most to its double: one at a time, a ramp is
  over before the last of them is ready.
- Where latency does not rise with the load there is no line: observed loads that met the objective are accepted.
- A shrink is checked again before it is recommended: the others, with its share of the load, must meet the objective.
- Prefill shrinks by the number of workers that compute, not by their queues.
- A cache that is nearly full is overloaded, whatever the ITL.
"""

from collections.abc import Iterator

from msgspec import field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planner import ModelSettings, Needs, Planner
from loadline.core.planning.recommendation import WAKE_MS, PoolRecommendation, recommend
from loadline.core.planning.sizing.load_stepper import LoadKnobs, LoadStepper
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Recommendation


class LoadPlanner(Planner):
    """Steps of each pool by the loads of its workers."""

    name = "load"
    summary = "Meets TTFT and ITL by the latency that each worker's load is observed to give."
    Knobs = LoadKnobs
    needs = Needs(objectives=frozenset({"ttft_ms", "itl_ms"}))

    knobs: LoadKnobs
    stepper: LoadStepper = field(default_factory=LoadStepper)
    next_ms: int = 0

    @classmethod
    def describe(cls, knobs: LoadKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the conditions of a change, and its pace."""
        yield (
            "Scales up to what the load needs, at most to twice the count, when every worker exceeds the objective; "
            "removes one worker when the others can take its load; changes at most once every "
            f"{duration(knobs.load_adjustment_interval_ms)}."
        )

    def on_settings_change(self, before: LoadKnobs) -> None:  # noqa: ARG002 - the same for all changes
        """Average loads over the new interval."""
        self.stepper.apply_settings(self.knobs)

    def forget_pool(self, pool: str) -> None:
        """Drop its loads."""
        self.stepper.forget_pool(pool)

    def next_wake(self) -> int:
        """Return the next check for stale workers."""
        return self.next_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """Step each pool."""
        self.next_ms = now + WAKE_MS
        self.stepper.update(model, self.knobs, now)
        pools: dict[str, PoolRecommendation] = {}
        for pool in model.pools.values():
            found = self.stepper.step(model, pool, self.knobs, now)
            count = pool.scaling_base(now) + found.step if found.step else None
            pools[pool.name] = PoolRecommendation(count, (found.reason,))
        return recommend(self.name, model, pools, self.stepper.inputs(model), now)
