"""Load planner: scales each pool by the latency that the load of its workers is predicted to cause.

A linear regression of latency over load is fitted to recent samples: TTFT over prompt tokens for prefill, ITL over KV
blocks for decode. Its inverse is the maximum load of a worker within the objective. As in Dynamo's load planner, a pool
grows when the load of *all* workers exceeds it. The pool shrinks by one worker when all loads are below the maximum
after their redistribution to one worker fewer, times ``scaling_down_sensitivity_ratio``. For aggregated workers, either
kind of load adds a worker, and only both remove one. Differences from Dynamo:

- A sample is evaluated in the turn in which it arrives, with at most one change per interval.
- Pending workers take their share of the load in advance, so that a pool grows further only if they do not suffice.
- The trend of a rising load counts, and a pool grows by all workers that it needs, at most to twice its count: a ramp
  would be over before a pool that adds one worker at a time has enough.
- If latency does not rise with load, there is no fit: the loads observed within the objective are allowed.
- Before a scale-down, the loads of the other workers with its share must meet the objective.
- Prefill shrinks by the number of busy workers instead of their queues.
- A worker with a nearly full KV cache is overloaded at any ITL.
- Requests that wait at decode or aggregated workers cause growth at any KV usage: batch slots may limit the workers.
"""

from collections.abc import Iterator

from msgspec import field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planner import ModelSettings, Needs, Planner
from loadline.core.planning.recommendation import WAKE_MS, PoolRecommendation, recommend
from loadline.core.planning.sizing.load.stepper import LoadKnobs, LoadStepper
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Recommendation


class LoadPlanner(Planner):
    """Planner that composes a load stepper."""

    name = "load"
    summary = "Meets TTFT and ITL by a regression of observed latency over the load of each worker."
    group = "compatible"
    Knobs = LoadKnobs
    needs = Needs(objectives=frozenset({"ttft_ms", "itl_ms"}))

    knobs: LoadKnobs
    stepper: LoadStepper = field(default_factory=LoadStepper)
    next_ms: int = 0

    @classmethod
    def describe(cls, knobs: LoadKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the conditions and the interval of changes."""
        yield (
            "Scales up to what the load needs, at most to twice the count, when every worker exceeds the objective; "
            "removes one worker when the others can take its load; changes at most once every "
            f"{duration(knobs.load_adjustment_interval_ms)}."
        )

    def on_settings_change(self, before: LoadKnobs) -> None:  # noqa: ARG002 - any change has the same effect
        """Apply the knobs to the stepper."""
        self.stepper.apply_settings(self.knobs)

    def forget_pool(self, pool: str) -> None:
        """Discard the loads of a pool."""
        self.stepper.forget_pool(pool)

    def next_wake(self) -> int:
        """Return the next check for stale workers."""
        return self.next_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """Recommend the step of each pool."""
        self.next_ms = now + WAKE_MS
        self.stepper.update(model, self.knobs, now)
        pools: dict[str, PoolRecommendation] = {}
        for pool in model.pools.values():
            found = self.stepper.step(model, pool, self.knobs, now)
            count = pool.scaling_base(now) + found.step if found.step else None
            pools[pool.name] = PoolRecommendation(count, (found.reason,))
        return recommend(self.name, model, pools, self.stepper.inputs(model), now)
