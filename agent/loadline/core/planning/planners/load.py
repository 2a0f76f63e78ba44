"""The load planner: one worker more or less, from what each worker has to do and the latency that this gives.

A line from load to latency is drawn through the samples of late: prompt tokens to TTFT for prefill, KV blocks to ITL
for decode. Solved backwards it says with which load a worker just meets its objective. As with Dynamo's load planner a
pool grows by one where *all* workers have more, and shrinks by one where all have less than what that leaves for one
worker less, times ``scaling_down_sensitivity_ratio``; of aggregated workers either job grows and only both shrink.
What differs:

- it is judged in the turn in which a sample comes, and at most one change is made in an interval;
- workers on their way take their share of the load in advance, so growth goes on only where they will not do;
- where latency does not rise with the load there is no line: loads that were seen to be fine are taken for fine;
- a shrink is computed once more before it is proposed: the others, with their share of its load, must keep the time;
- a cache that is nearly full is a load that is too high, whatever the ITL.
"""

from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct, field

from loadline.core.belief.fleet import Model
from loadline.core.belief.pool import Pool
from loadline.core.models.load import SENSITIVITY, Step, can_consolidate, either_up_both_down, load_step
from loadline.core.models.regression import SAMPLES_MIN, Regression
from loadline.core.planning.planners.base import Planner
from loadline.core.planning.planners.loads import Loads, Mean
from loadline.core.planning.planners.recommendation import WAKE_MS, Recommendation, opinion
from loadline.core.report import Code, Opinion, Reason

_INFINITE: Final = float("inf")


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


class Verdict(Struct, frozen=True):
    """One more (1), one less (-1) or none (0), and why."""

    step: Step
    reason: Reason


class Line(Struct, frozen=True):
    """What a regression says of an objective."""

    up: float
    """Above this load a worker misses its objective."""
    down: float
    """Up to this load a worker meets it."""


class LoadPlanner(Planner):
    """See the module."""

    name: ClassVar[str] = "load"

    knobs: LoadKnobs
    loads: dict[str, Loads] = field(default_factory=dict)
    next_ms: int = 0

    def next_wake(self) -> int:
        """The next look at who is fresh."""
        return self.next_ms

    def plan(self, model: Model, now: int) -> Opinion:
        """Step each pool by at most one."""
        self.observe(model, now)
        said: dict[str, Recommendation] = {}
        for pool in model.pools.values():
            verdict = self.judge(model, pool, now)
            said[pool.name] = Recommendation(pool.base(now) + verdict.step if verdict.step else None, (verdict.reason,))
        return opinion(self.name, model, said, self.inputs(model), now)

    def observe(self, model: Model, now: int) -> None:
        """Take in what is new."""
        self.next_ms = now + WAKE_MS
        for name, pool in model.pools.items():
            if name not in self.loads:
                self.loads[name] = Loads(self.knobs.load_adjustment_interval_ms)
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

    def judge(self, model: Model, pool: Pool, now: int) -> Verdict:
        """Weigh one pool; guard clauses first: what is missing is a hold."""
        loads = self.loads[pool.name]
        kinds = _by_kind(pool, loads)
        if pool.ready == 0:
            return Verdict(0, Reason(Code.NO_WORKERS, pool.name))
        known = min(len(values) for values in kinds.values())
        if known == 0:
            return Verdict(0, Reason.of(Code.NO_DATA, pool.name, fresh=pool.fresh, ready=pool.ready, known=0))
        objectives = {"prefill_tokens": model.objectives.ttft_ms, "decode_blocks": model.objectives.itl_ms}
        verdicts = [self._weigh(pool, kind, values, objectives[kind], now) for kind, values in kinds.items()]
        verdict = verdicts[0]
        if len(verdicts) > 1:
            step = either_up_both_down(verdicts[0].step, verdicts[1].step)
            verdict = next((one for one in verdicts if one.step == step), Verdict(step, verdicts[0].reason))
        return self._paced(pool, verdict, now) if verdict.step else verdict

    def _weigh(self, pool: Pool, kind: str, values: list[Mean], sla_ms: float, now: int) -> Verdict:
        loads = self.loads[pool.name]
        regression = loads.prefill if kind == "prefill_tokens" else loads.decode
        idle = all(value.now == 0.0 and value.calm < 1.0 for value in values)
        capacity = self._capacity(pool) if kind == "decode_blocks" else _INFINITE
        line = _line(regression, sla_ms, capacity, loads.isl_tokens if kind == "prefill_tokens" else 0.0)
        if line is None and not idle:
            known = len(regression.loads)
            return Verdict(0, Reason.of(Code.LOAD_LEARNING, pool.name, known=known, needed=SAMPLES_MIN))
        total = pool.total(now)
        share = pool.ready / max(total, 1)
        highs = [value.high * share for value in values]
        means = [max(value.mean, value.calm) if kind == "decode_blocks" else value.calm for value in values]
        up, down = (line.up, line.down) if line is not None else (_INFINITE, 1.0)
        sensitivity = self.knobs.scaling_down_sensitivity_ratio
        if load_step(highs, up) > 0:
            numbers = {"target": up, "latency_ms": sla_ms, "least": min(highs)}
            return Verdict(1, Reason.of(Code.LOAD_HIGH, pool.name, **numbers))
        complete = len(values) >= pool.ready and total == pool.ready
        if complete and load_step(means, down, sensitivity) < 0:
            bound = down * (pool.ready - 1) / pool.ready * sensitivity
            fitted = regression.line()
            if idle or fitted is None or can_consolidate(means, fitted.at, sla_ms, sensitivity, capacity):
                return Verdict(-1, Reason.of(Code.LOAD_LOW, pool.name, target=bound, most=max(means)))
            return Verdict(0, Reason.of(Code.CONSOLIDATION_REFUSED, pool.name, latency_ms=sla_ms))
        within = {"least": min(highs), "most": max(means), "target": min(up, 1e12), "latency_ms": sla_ms}
        return Verdict(0, Reason.of(Code.LOAD_WITHIN, pool.name, **within))

    def _capacity(self, pool: Pool) -> float:
        """KV blocks that a worker may use; infinite where no worker says how many it has."""
        for worker in pool.workers.values():
            said = (sample.kv_blocks_total for sample in worker.latest if sample is not None)
            total = worker.record.kv_blocks_total or next(filter(None, said), None)
            if total:
                return total * self.knobs.kv_usage_max
        return _INFINITE

    def _paced(self, pool: Pool, verdict: Verdict, now: int) -> Verdict:
        """One change an interval; a shrink also waits after any change of the ready workers."""
        changed_ms = max(pool.grown_at_ms, pool.shrunk_at_ms)
        if verdict.step < 0:
            changed_ms = max(changed_ms, pool.ready_changed_at_ms)
        age_ms, interval_ms = now - changed_ms, self.knobs.load_adjustment_interval_ms
        if changed_ms < 0 or age_ms >= interval_ms:
            return verdict
        return Verdict(0, Reason.of(Code.ADJUSTMENT_INTERVAL, pool.name, age_ms=age_ms, interval_ms=interval_ms))


def _by_kind(pool: Pool, loads: Loads) -> dict[str, list[Mean]]:
    """The known loads of what the workers of a pool do."""
    workers, role, found = loads.workers.values(), pool.knobs.role, {}
    if role != "decode":
        found["prefill_tokens"] = [load for one in workers if (load := one.prefill_tokens) is not None]
    if role != "prefill":
        found["decode_blocks"] = [load for one in workers if (load := one.decode_blocks) is not None]
    return found


def _line(regression: Regression, sla_ms: float, capacity: float, own: float) -> Line | None:
    """What a regression says; ``own`` is the load of a request itself, which the others have not got."""
    fitted = regression.line()
    if fitted is None:
        return None
    if fitted.slope > 0.0:
        target = min((regression.load_at(sla_ms) or 0.0) - own, capacity)
        return Line(target if target > 0.0 else _INFINITE, target)
    fine = [load for load, ms in zip(regression.loads, regression.latencies_ms, strict=True) if ms < sla_ms]
    return Line(capacity, min(max(fine, default=0.0) - own, capacity))
