"""The load planner: workers more or less, from what each worker has to do and the latency that this gives.

A line from load to latency is drawn through the samples of late: prompt tokens to TTFT for prefill, KV blocks to ITL
for decode. Solved backwards it says with which load a worker just meets its objective. As with Dynamo's load planner a
pool grows where *all* workers have more, and shrinks by one where all have less than what that leaves for one worker
less, times ``scaling_down_sensitivity_ratio``; of aggregated workers either job grows and only both shrink. What
differs:

- it is judged in the turn in which a sample comes, and at most one change is made in an interval;
- workers on their way take their share of the load in advance, so growth goes on only where they will not do;
- loads count as they rise, and a pool grows by as many workers as they need, at most to its double: with one at a time
  a ramp is over before the last of them has come;
- where latency does not rise with the load there is no line: loads that were seen to be fine are taken for fine;
- a shrink is computed once more before it is proposed: the others, with their share of its load, must keep the time;
- prefill shrinks by how many workers compute, not by their queues: see ``jobs``;
- a cache that is nearly full is a load that is too high, whatever the ITL.
"""

from collections.abc import Iterator
from math import inf
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from loadline.core.engines.regression import SAMPLES_MIN
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.planner import ModelSettings, Needs, Planner
from loadline.core.planning.recommendation import WAKE_MS, PoolRecommendation, recommend
from loadline.core.planning.sizing.load_sizing import Job, PrefillJob
from loadline.core.planning.sizing.load_steps import SENSITIVITY, either_up_both_down, load_step
from loadline.core.planning.sizing.worker_loads import LoadMean, Loads
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation


class LoadKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the load planner; names of Dynamo's, units added."""

    load_adjustment_interval_ms: Annotated[
        int, Meta(ge=1_000, le=3_600_000, description="Least time between two changes of a pool.")
    ] = 5_000
    scaling_down_sensitivity_ratio: Annotated[
        float, Meta(ge=0, le=1, description="How far below what one worker less would bear loads must be; 0: never.")
    ] = SENSITIVITY
    kv_usage_max: Annotated[
        float, Meta(gt=0, le=1, description="A cache that is fuller is too full, whatever the ITL.")
    ] = 0.9


class LoadDecision(Struct, frozen=True):
    """So many more, one less (-1) or none (0), and why."""

    step: int
    reason: Reason


class LoadPlanner(Planner):
    """See the module."""

    name = "load"
    summary = "Meets TTFT and ITL by the latency that each worker's load is observed to give."
    Knobs = LoadKnobs
    needs = Needs(objectives=frozenset({"ttft_ms", "itl_ms"}))
    pool_fields: ClassVar[tuple[str, ...]] = ("loads",)

    knobs: LoadKnobs
    loads: dict[str, Loads] = field(default_factory=dict)
    next_ms: int = 0

    @classmethod
    def describe(cls, knobs: LoadKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the conditions of a change, and its pace."""
        yield (
            "Scales up to what the load needs, at most to twice the count, when every worker exceeds the objective; "
            "removes one worker when the others can take its load; changes at most once every "
            f"{duration(knobs.load_adjustment_interval_ms)}."
        )

    def on_settings_change(self, before: LoadKnobs) -> None:  # noqa: ARG002 - the means follow whatever they were
        """Means are over the interval. What is known of latencies stays known."""
        for loads in self.loads.values():
            loads.mean_ms = self.knobs.load_adjustment_interval_ms

    def next_wake(self) -> int:
        """The next look at who is fresh."""
        return self.next_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """Step each pool."""
        self.observe(model, now)
        said: dict[str, PoolRecommendation] = {}
        for pool in model.pools.values():
            verdict = self.judge(model, pool, now)
            said[pool.name] = PoolRecommendation(
                pool.scaling_base(now) + verdict.step if verdict.step else None, (verdict.reason,)
            )
        return recommend(self.name, model, said, self.inputs(model), now)

    def observe(self, model: Model, now: int) -> None:
        """Take in what is new."""
        self.next_ms = now + WAKE_MS
        for name, pool in model.pools.items():
            if name not in self.loads:
                self.loads[name] = Loads(self.knobs.load_adjustment_interval_ms)
                self.loads[name].draw_apart(f"{model.name}/{name}", now)
            self.loads[name].look(pool, now)

    def inputs(self, model: Model) -> dict[str, float]:
        """The loads of each pool."""
        found: dict[str, float] = {}
        for name, pool in model.pools.items():
            for kind, values in _by_kind(pool, self.loads[name]).items():
                if values:
                    loads = [value.now for value in values]
                    found[f"{name}.{kind}_least"] = min(loads)
                    found[f"{name}.{kind}_most"] = max(loads)
        return found

    def judge(self, model: Model, pool: Pool, now: int) -> LoadDecision:
        """Weigh one pool; guard clauses first: what is missing is a hold."""
        if pool.ready == 0:
            return LoadDecision(0, Reason(ReasonCode.NO_WORKERS, pool.name))
        known = min(len(values) for values in _by_kind(pool, self.loads[pool.name]).values())
        if known == 0:
            return LoadDecision(
                0, Reason.of(ReasonCode.NO_DATA, pool.name, fresh=pool.fresh, ready=pool.ready, known=0)
            )
        verdicts = [self._weigh(pool, job, now) for job in self._jobs(model, pool)]
        step = either_up_both_down(*(one.step for one in verdicts))
        verdict = next(one for one in verdicts if one.step == step)
        return self._paced(pool, verdict, now) if verdict.step else verdict

    def _jobs(self, model: Model, pool: Pool) -> Iterator[Job]:
        loads, sensitivity = self.loads[pool.name], self.knobs.scaling_down_sensitivity_ratio
        for kind, values in _by_kind(pool, loads).items():
            scale = pool.ready / len(values)
            if kind == "decode_blocks":
                itl_ms, capacity = model.objectives.itl_ms, self._capacity(pool)
                yield Job(values, loads.decode, itl_ms, sensitivity, scale, capacity)
            else:
                ttft_ms, own = model.objectives.ttft_ms, loads.isl_tokens
                computing = [one.computing for one in loads.workers.values() if one.computing is not None]
                yield PrefillJob(values, loads.prefill, ttft_ms, sensitivity, scale, own=own, computing=computing)

    def _weigh(self, pool: Pool, job: Job, now: int) -> LoadDecision:
        line, supply = job.line(), pool.worker_counts(now)
        if line is None and not job.idle:
            known = len(job.regression.loads)
            return LoadDecision(0, Reason.of(ReasonCode.LOAD_LEARNING, pool.name, known=known, needed=SAMPLES_MIN))
        up, down = (line.up, line.down) if line is not None else (inf, 1.0)
        share = pool.ready / max(supply.expected, 1)
        highs = [load * share for load in job.expected(up)]
        if load_step(highs, up) > 0:
            step = min(max(job.needed(up) - supply.expected, 1), supply.expected)
            return LoadDecision(
                step, Reason.of(ReasonCode.LOAD_HIGH, pool.name, target=up, latency_ms=job.sla_ms, least=min(highs))
            )
        complete = len(job.values) >= pool.ready and supply.expected == pool.ready
        less = job.less(down) if complete and job.sensitivity > 0.0 else "no"
        if less == "yes":
            return LoadDecision(-1, Reason.of(ReasonCode.LOAD_LOW, pool.name, target=job.bound(down), most=job.most))
        if less == "refused":
            return LoadDecision(0, Reason.of(ReasonCode.CONSOLIDATION_REFUSED, pool.name, latency_ms=job.sla_ms))
        within = {"least": min(highs), "most": job.most, "target": min(up, 1e12), "latency_ms": job.sla_ms}
        return LoadDecision(0, Reason.of(ReasonCode.LOAD_WITHIN, pool.name, **within))

    def _capacity(self, pool: Pool) -> float:
        """KV blocks that a worker may use; infinite where no worker says how many it has."""
        for worker in pool.workers.values():
            said = (sample.kv_blocks_total for sample in worker.latest if sample is not None)
            total = worker.record.kv_blocks_total or next(filter(None, said), None)
            if total:
                return total * self.knobs.kv_usage_max
        return inf

    def _paced(self, pool: Pool, verdict: LoadDecision, now: int) -> LoadDecision:
        """One change an interval; a shrink also waits after any change of the ready workers."""
        changed_ms = max(pool.scaled_up_at_ms, pool.scaled_down_at_ms)
        if verdict.step < 0:
            changed_ms = max(changed_ms, pool.ready_changed_at_ms)
        age_ms, interval_ms = now - changed_ms, self.knobs.load_adjustment_interval_ms
        if changed_ms < 0 or age_ms >= interval_ms:
            return verdict
        return LoadDecision(
            0, Reason.of(ReasonCode.ADJUSTMENT_INTERVAL, pool.name, age_ms=age_ms, interval_ms=interval_ms)
        )


def _by_kind(pool: Pool, loads: Loads) -> dict[str, list[LoadMean]]:
    """The known loads of what the workers of a pool do."""
    workers, role, found = loads.workers.values(), pool.knobs.role, {}
    if role != "decode":
        found["prefill_tokens"] = [load for one in workers if (load := one.prefill_tokens) is not None]
    if role != "prefill":
        found["decode_blocks"] = [load for one in workers if (load := one.decode_blocks) is not None]
    return found
