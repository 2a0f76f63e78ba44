"""Steps of pools by the loads of their workers and the latencies at these loads."""

from collections.abc import Iterator
from math import ceil, inf
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.engines.regression import SAMPLES_MIN
from loadline.core.fleet.estimates import blocks_total, estimates_prompts
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.recommendation import hold_between_changes
from loadline.core.planning.sizing.decode_queues import waits_for_prefill
from loadline.core.planning.sizing.load.limits import DecodeWork, LoadLimits, PrefillWork
from loadline.core.planning.sizing.load.steps import SENSITIVITY, combine_steps, load_step
from loadline.core.planning.sizing.load.worker_loads import LoadMean, PoolLoads
from loadline.core.vocabulary.reasons import Reason, ReasonCode

_QUEUED_MS: Final = 5_000
"""Time for which requests wait before they cause a step: a burst is over sooner."""
_WITHOUT_LOAD: Final = {ReasonCode.SILENT_WORKERS, ReasonCode.WORKERS_PENDING}


class LoadKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the load planner; names of Dynamo's, with units added."""

    load_adjustment_interval_ms: Annotated[
        int, Meta(ge=1_000, le=3_600_000, description="Shortest time between two changes of a pool.")
    ] = 5_000
    scaling_down_sensitivity_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Scale down when loads are below this fraction of what the pool could carry with one worker "
            "fewer; 0: never.",
        ),
    ] = SENSITIVITY
    kv_usage_max: Annotated[
        float, Meta(gt=0, le=1, description="KV usage above which a worker is overloaded at any ITL.")
    ] = 0.9


class LoadStep(Struct, frozen=True):
    """Workers to add, one to remove (-1) or no change (0), with the reason."""

    step: int
    reason: Reason


class LoadStepper(Struct):
    """Loads and latencies of the workers of each pool, and the steps that follow from them."""

    loads: dict[str, PoolLoads] = field(default_factory=dict)

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool."""
        self.loads.pop(pool, None)

    def apply_settings(self, knobs: LoadKnobs) -> None:
        """Average loads over the interval; known latencies are kept."""
        for loads in self.loads.values():
            loads.mean_ms = knobs.load_adjustment_interval_ms

    def update(self, model: Model, knobs: LoadKnobs, now: int) -> None:
        """Record the newest samples of all workers."""
        isl_tokens = model.traffic.totals.isl_tokens.value or 0.0
        for name, pool in model.pools.items():
            if name not in self.loads:
                self.loads[name] = PoolLoads(knobs.load_adjustment_interval_ms)
                self.loads[name].stagger_fits(f"{model.name}/{name}", now)
            self.loads[name].update(pool, now, isl_tokens)

    def inputs(self, model: Model) -> dict[str, float]:
        """Return the lowest and the highest load of each pool, and pools whose prompt tokens are estimates."""
        found: dict[str, float] = {}
        for name, pool in model.pools.items():
            for kind, values in _by_kind(pool, self.loads[name]).items():
                if values:
                    loads = [value.now for value in values]
                    found[f"{name}.{kind}_min"] = min(loads)
                    found[f"{name}.{kind}_max"] = max(loads)
            if pool.knobs.role != "decode" and estimates_prompts(pool):
                found[f"{name}.prefill_tokens_estimated"] = 1.0
        return found

    def step(self, model: Model, pool: Pool, knobs: LoadKnobs, now: int) -> LoadStep:
        """Return the step of a pool; without data it is 0."""
        if pool.ready == 0:
            return LoadStep(0, Reason(ReasonCode.NO_WORKERS, pool.name))
        found, queued = self._load_step(model, pool, knobs, now), self._queue_step(model, pool, now)
        # A queue also prevents a removal: KV usage is low if batch slots limit the workers.
        if queued is not None and (queued.step > found.step or found.step <= 0):
            found = queued
        return _paced(pool, found, knobs.load_adjustment_interval_ms, now) if found.step else found

    def _load_step(self, model: Model, pool: Pool, knobs: LoadKnobs, now: int) -> LoadStep:
        """Return the step by the loads of the workers."""
        known = min(len(values) for values in _by_kind(pool, self.loads[pool.name]).values())
        if known == 0:
            numbers = {"fresh": pool.fresh, "ready": pool.ready, "known": 0}
            return LoadStep(0, Reason.of(ReasonCode.NO_DATA, pool.name, **numbers))
        steps = [_step(pool, work, now) for work in self._work(model.objectives, pool, knobs)]
        step = combine_steps(*(one.step for one in steps))
        # Workers without a load are the cause only if no kind of load is.
        agreed = [one for one in steps if one.step == step]
        return min(agreed, key=lambda one: one.reason.code in _WITHOUT_LOAD)

    def _queue_step(self, model: Model, pool: Pool, now: int) -> LoadStep | None:
        """Return the step by the queues of decode and aggregated workers; None if they have none.

        The workers are full at any KV usage, and hold what runs: the step is for what runs and waits, and at most
        doubles the pool. As a queue does not tell the arrivals, the next one waits until the new workers are ready.
        """
        since_ms, pending = self.loads[pool.name].queued_since_ms, pool.expected_workers(now) - pool.ready
        if pool.knobs.role == "prefill" or since_ms < 0 or now - since_ms < _QUEUED_MS:
            return None
        if waits_for_prefill(model, pool):
            return None
        if pending > 0:
            return LoadStep(0, Reason.of(ReasonCode.WORKERS_PENDING, pool.name, pending=pending))
        waiting, running, ready = pool.load.waiting, pool.load.running, pool.ready
        step = min(ceil(ready * waiting / running), ready) if running else ready
        numbers = {"waiting": waiting, "running": running, "ready": ready, "queued_ms": now - since_ms}
        return LoadStep(step, Reason.of(ReasonCode.WORKER_QUEUE_HIGH, pool.name, **numbers))

    def _work(self, objectives: ObjectiveKnobs, pool: Pool, knobs: LoadKnobs) -> Iterator[DecodeWork]:
        loads, sensitivity = self.loads[pool.name], knobs.scaling_down_sensitivity_ratio
        for kind, values in _by_kind(pool, loads).items():
            scale = pool.ready / len(values)
            if kind == "decode_blocks":
                load_max = _blocks_max(pool, knobs.kv_usage_max)
                yield DecodeWork(values, loads.decode, objectives.itl_ms, sensitivity, scale, load_max)
            else:
                ttft_ms, isl = objectives.ttft_ms, loads.isl_tokens
                computing = [one.computing for one in loads.workers.values() if one.computing is not None]
                yield PrefillWork(values, loads.prefill, ttft_ms, sensitivity, scale, own_load=isl, computing=computing)


def _step(pool: Pool, work: DecodeWork, now: int) -> LoadStep:
    """Return the step for one kind of work of a pool."""
    limits, counts, name = work.limits(), pool.worker_counts(now), pool.name
    if limits is None and not work.is_idle:
        known = len(work.regression.loads)
        return LoadStep(0, Reason.of(ReasonCode.LOAD_LEARNING, name, known=known, needed=SAMPLES_MIN))
    limits = limits or LoadLimits(inf, 1.0, work.objective_ms)
    up = limits.up
    share = pool.ready / max(counts.expected, 1)
    highs = [load * share for load in work.expected(up)]
    if load_step(highs, up) > 0:
        step = min(max(work.needed(up) - counts.expected, 1), counts.expected)
        numbers = {"target": up, "latency_ms": limits.latency_ms, "load_min": min(highs)}
        return LoadStep(step, Reason.of(ReasonCode.LOAD_HIGH, name, **numbers))
    removal = work.removal(limits) if work.sensitivity > 0.0 else "no"
    if removal == "yes":
        return _remove_one(pool, work, limits.down, counts.expected)
    if removal == "refused" and limits.missed_ms is None:
        return LoadStep(0, Reason.of(ReasonCode.CONSOLIDATION_REFUSED, name, latency_ms=work.objective_ms))
    if limits.missed_ms is not None:
        numbers = {"best_ms": limits.missed_ms, "objective_ms": work.objective_ms}
        return LoadStep(0, Reason.of(ReasonCode.SLA_INFEASIBLE, name, **numbers))
    within = {
        "load_min": min(highs),
        "load_max": work.highest,
        "target": min(up, 1e12),
        "latency_ms": limits.latency_ms,
    }
    return LoadStep(0, Reason.of(ReasonCode.LOAD_WITHIN, name, **within))


def _remove_one(pool: Pool, work: DecodeWork, down: float, expected: int) -> LoadStep:
    """Return the removal of a worker, unless the load of another is unknown: it is silent, or pending."""
    silent, name = pool.ready - len(work.loads), pool.name
    if silent > 0:
        return LoadStep(0, Reason.of(ReasonCode.SILENT_WORKERS, name, silent=silent))
    if expected > pool.ready:
        return LoadStep(0, Reason.of(ReasonCode.WORKERS_PENDING, name, pending=expected - pool.ready))
    return LoadStep(-1, Reason.of(ReasonCode.LOAD_LOW, name, target=work.removal_limit(down), load_max=work.highest))


def _paced(pool: Pool, step: LoadStep, interval_ms: int, now: int) -> LoadStep:
    """Return the step if the interval has passed since the last change; a shrink also waits for ready workers."""
    changed_ms = max(pool.scaled_up_at_ms, pool.scaled_down_at_ms)
    if step.step < 0:
        changed_ms = max(changed_ms, pool.ready_changed_at_ms)
    age_ms = now - changed_ms
    if changed_ms < 0 or age_ms >= interval_ms:
        return step
    return LoadStep(0, hold_between_changes(pool, age_ms, interval_ms))


def _blocks_max(pool: Pool, kv_usage_max: float) -> float:
    """Return the KV blocks that a worker may use; infinite if no worker reports how many it has."""
    for worker in pool.workers.values():
        for sample in worker.latest:
            if sample is not None and (total := blocks_total(sample, worker.record)):
                return total * kv_usage_max
    return inf


def _by_kind(pool: Pool, loads: PoolLoads) -> dict[str, list[LoadMean]]:
    """Return the known loads of a pool's workers by the kind of their work."""
    workers, role, found = loads.workers.values(), pool.knobs.role, {}
    if role != "decode":
        found["prefill_tokens"] = [load for one in workers if (load := one.prefill_tokens) is not None]
    if role != "prefill":
        found["decode_blocks"] = [load for one in workers if (load := one.decode_blocks) is not None]
    return found
