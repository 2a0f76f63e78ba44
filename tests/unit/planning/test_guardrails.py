"""Guardrails: each alone, their precedence, and properties for any proposal; GPU budgets have a file of their own."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.constraints import CapacityLimits, Constraints, SupplyHeadroom
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.fleet_harness import START
from tests.support.guardrail_harness import MINUTE_MS, A, B, GuardrailHarness

# -- each alone --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [1, 3, 4, 5, 8])
def test_an_unlimited_proposal_is_unchanged(wanted: int) -> None:
    assert GuardrailHarness(A).outcome(a=wanted) == ({"a": wanted}, [])


def test_pools_left_out_keep_their_target() -> None:
    assert GuardrailHarness(A, B).outcome(a=5) == ({"a": 5, "b": 4}, [])
    assert GuardrailHarness(A, B).outcome() == ({"a": 4, "b": 4}, [])


@pytest.mark.parametrize(("wanted", "allowed", "applied"), [(6, 6, []), (7, 6, ["a:step_up"])])
def test_growth_is_limited_to_the_maximum_step(wanted: int, allowed: int, applied: list[str]) -> None:
    assert GuardrailHarness(A, step_up_max=2).outcome(a=wanted) == ({"a": allowed}, applied)


@pytest.mark.parametrize(("wanted", "allowed", "applied"), [(2, 2, []), (1, 2, ["a:step_down"])])
def test_shrink_is_limited_to_the_maximum_step(wanted: int, allowed: int, applied: list[str]) -> None:
    assert GuardrailHarness(A, step_down_max=2).outcome(a=wanted) == ({"a": allowed}, applied)


def test_a_step_down_is_measured_from_existing_workers() -> None:
    harness = GuardrailHarness(A, step_down_max=1)
    harness.pool("a").reset_decided(8, 0)  # four workers were requested long ago and never registered
    assert harness.outcome(a=1) == ({"a": 3}, ["a:step_down"])


@pytest.mark.parametrize("bound", [A, PoolKnobs("a", "decode", replicas_min=4, replicas_max=4)])
def test_targets_stay_within_replica_bounds(bound: PoolKnobs) -> None:
    harness = GuardrailHarness(bound)
    low, high = bound.replicas_min, bound.replicas_max
    assert harness.outcome(a=low) == ({"a": low}, [])
    assert harness.outcome(a=low - 1) == ({"a": low}, ["a:replicas_min"])
    assert harness.outcome(a=high) == ({"a": high}, [])
    assert harness.outcome(a=high + 1) == ({"a": high}, ["a:replicas_max"])


@pytest.mark.parametrize(("fresh", "allowed", "applied"), [(4, 3, []), (3, 4, ["a:no_data_no_shrink"])])
def test_without_data_no_pool_shrinks(fresh: int, allowed: int, applied: list[str]) -> None:
    harness = GuardrailHarness(A, quorate=False)
    harness.report("a", silent=4 - fresh)
    assert harness.outcome(a=3) == ({"a": allowed}, applied)


def test_without_data_pools_may_grow() -> None:
    assert GuardrailHarness(A, quorate=False).outcome(a=6) == ({"a": 6}, [])


def test_a_shrink_stops_at_the_highest_recommendation_of_the_window() -> None:
    harness = GuardrailHarness(A, stabilisation_ms=MINUTE_MS)
    assert harness.outcome(a=3) == ({"a": 3}, []), "there was no other recommendation before"
    harness = GuardrailHarness(A, stabilisation_ms=MINUTE_MS)
    assert harness.outcome(a=3)[0] == {"a": 3}
    harness.now += 1_000
    harness.report("a")
    assert harness.outcome(a=1) == ({"a": 3}, ["a:stabilisation"])
    harness.now += MINUTE_MS - 1
    harness.report("a")
    assert harness.outcome(a=1) == ({"a": 3}, ["a:stabilisation"])
    harness.now += 1
    assert harness.outcome(a=1) == ({"a": 1}, [])


def test_a_hold_counts_as_a_recommendation_of_the_current_target() -> None:
    harness = GuardrailHarness(A, stabilisation_ms=MINUTE_MS)
    harness.apply()
    harness.now += MINUTE_MS - 1
    harness.report("a")
    harness.apply()
    assert harness.outcome(a=2) == ({"a": 4}, ["a:stabilisation"])


def test_stabilisation_never_grows_a_pool() -> None:
    harness = GuardrailHarness(A, stabilisation_ms=MINUTE_MS)
    harness.apply(a=8)
    harness.now += 1_000
    harness.report("a")
    assert harness.outcome(a=3) == ({"a": 4}, ["a:stabilisation"])


def limited(harness: GuardrailHarness, wanted: int, limits: CapacityLimits) -> int:
    """Return the target of the only pool while GPUs are short, one second after the last one."""
    harness.now += 1_000
    harness.report("a")
    constraints = Constraints(harness.acting_since_ms, supply=SupplyHeadroom({}, {}, limits))
    return harness.guard.apply(harness.refresh(), {"a": wanted}, constraints, harness.now).targets["a"]


def test_a_pool_shrinks_to_a_final_grant_at_once_and_not_to_a_preliminary_one() -> None:
    harness = GuardrailHarness(A, stabilisation_ms=MINUTE_MS)
    assert limited(harness, 4, CapacityLimits({"a": 2})) == 4
    assert limited(harness, 4, CapacityLimits({"a": 2}, settled=True)) == 2
    assert limited(harness, 4, CapacityLimits({"a": 3}, settled=True)) == 3
    assert limited(harness, 4, CapacityLimits({"a": 1}, settled=True)) == 3, "the highest grant of the window"
    assert limited(harness, 4, CapacityLimits({"a": 1}, frozenset({"a"}), settled=True)) == 1, "another model needs it"
    assert limited(harness, 4, CapacityLimits({"a": 1}, frozenset({"a"}))) == 4


def test_a_pool_that_is_no_longer_limited_shrinks_by_its_recommendations() -> None:
    harness = GuardrailHarness(A, stabilisation_ms=MINUTE_MS)
    assert limited(harness, 4, CapacityLimits({"a": 2}, settled=True)) == 2
    assert limited(harness, 2, CapacityLimits({"b": 2}, settled=True)) == 4


@pytest.mark.parametrize("what", ["scaled_up_at_ms", "scaled_down_at_ms"])
@pytest.mark.parametrize(("wanted", "knob"), [(5, "cooldown_up_ms"), (3, "cooldown_down_ms")])
def test_changes_wait_for_the_cooldown(what: str, wanted: int, knob: str) -> None:
    harness = GuardrailHarness(A, quorate=True, **{knob: MINUTE_MS})
    assert harness.outcome(a=wanted) == ({"a": wanted}, []), "no change has happened"
    setattr(harness.pool("a"), what, START)
    harness.now += MINUTE_MS - 1
    harness.report("a")
    assert harness.outcome(a=wanted) == ({"a": 4}, ["a:cooldown"])
    assert harness.outcome(a=8 - wanted) == ({"a": 8 - wanted}, []), "the other direction has its own knob"
    harness.now += 1
    assert harness.outcome(a=wanted) == ({"a": wanted}, [])


def test_shrinks_wait_for_the_warm_up_after_a_takeover() -> None:
    harness = GuardrailHarness(A, warm_up_ms=MINUTE_MS)
    harness.apply()
    harness.acting_since_ms = START
    harness.now += MINUTE_MS - 1
    harness.report("a")
    assert harness.outcome(a=3) == ({"a": 4}, ["a:warm_up"])
    assert harness.outcome(a=5) == ({"a": 5}, [])
    harness.now += 1
    assert harness.outcome(a=3) == ({"a": 3}, [])


def test_shrinks_wait_for_the_warm_up_after_a_gap_in_the_data() -> None:
    harness = GuardrailHarness(A, warm_up_ms=MINUTE_MS)
    harness.apply()
    harness.now += 10 * MINUTE_MS
    harness.apply()  # all workers became silent
    harness.report("a")
    harness.apply()
    harness.now += MINUTE_MS - 1
    harness.report("a")
    assert harness.outcome(a=3) == ({"a": 4}, ["a:warm_up"])
    harness.now += 1
    assert harness.outcome(a=3) == ({"a": 3}, [])


# -- precedence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "most", "wanted", "target", "strongest"),
    [
        # A minimum and a budget override all guardrails that delay or prevent a change.
        ({"step_up_max": 1}, None, -1, 6, "replicas_min"),
        ({"cooldown_up_ms": MINUTE_MS}, None, 5, 6, "replicas_min"),
        ({"step_up_max": 1}, 4, 8, 4, "gpu_budget_hold"),
        ({"step_down_max": 1}, 2, 1, 2, "gpu_budget_reconcile"),
        ({"stabilisation_ms": MINUTE_MS}, 2, 4, 2, "gpu_budget_reconcile"),
        ({"warm_up_ms": MINUTE_MS}, 2, 1, 2, "gpu_budget_reconcile"),
        ({"cooldown_down_ms": MINUTE_MS}, 2, 1, 2, "gpu_budget_reconcile"),
    ],
)
def test_bounds_override_all_other_guardrails(
    knobs: dict[str, int], most: int | None, wanted: int, target: int, strongest: str
) -> None:
    pool = PoolKnobs("a", "decode", replicas_min=6 if strongest == "replicas_min" else 1)
    harness = GuardrailHarness(pool, quorate=True, **knobs).budget(most)
    harness.pool("a").scaled_up_at_ms = harness.acting_since_ms = START
    targets, applied = harness.outcome(a=wanted)
    assert targets == {"a": target}
    assert applied[0] == f"a:{strongest}"


@pytest.mark.parametrize("most", [None, 2])
def test_a_gpu_budget_shrinks_pools_without_data(most: int | None) -> None:
    harness = GuardrailHarness(A, quorate=False).budget(most)
    assert harness.outcome(a=1)[0] == {"a": 4 if most is None else 2}


@pytest.mark.parametrize(
    ("quorate", "knobs", "allowed", "rails"),
    [
        (True, {}, 3, ["a:replicas_max"]),
        (True, {"step_down_max": 2}, 6, ["a:step_down", "a:replicas_max"]),
        (False, {}, 8, ["a:no_data_no_shrink", "a:replicas_max"]),
        (True, {"cooldown_down_ms": MINUTE_MS}, 8, ["a:cooldown", "a:replicas_max"]),
        (True, {"warm_up_ms": MINUTE_MS}, 8, ["a:warm_up", "a:replicas_max"]),
    ],
)
@pytest.mark.parametrize("wanted", [8, 20])
def test_existing_workers_above_the_maximum_leave_as_in_any_shrink(
    *, quorate: bool, knobs: dict[str, int], allowed: int, rails: list[str], wanted: int
) -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode", replicas_max=3), current=8, quorate=quorate, **knobs)
    harness.pool("a").scaled_down_at_ms = harness.acting_since_ms = START
    assert harness.outcome(a=wanted) == ({"a": allowed}, rails)


def test_existing_workers_above_the_maximum_stay_until_a_scaler_has_accepted_the_last_scale_down() -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode", replicas_max=3), current=8)
    limits = Constraints(harness.acting_since_ms, unaccepted=frozenset({"a"}))
    assert harness.guard.apply(harness.refresh(), {"a": 8}, limits, harness.now).targets == {"a": 8}


@pytest.mark.parametrize(("wanted", "target", "applied"), [(3, 4, ["a:unaccepted"]), (4, 4, []), (5, 5, [])])
def test_a_pool_does_not_shrink_further_before_a_scaler_has_accepted_the_last_scale_down(
    wanted: int, target: int, applied: list[str]
) -> None:
    harness = GuardrailHarness(A)
    limits = Constraints(harness.acting_since_ms, unaccepted=frozenset({"a"}))
    draft = harness.guard.apply(harness.refresh(), {"a": wanted}, limits, harness.now)
    assert (draft.targets, [f"{r.pool}:{r.code}" for r in draft.limits]) == ({"a": target}, applied)


def test_workers_that_start_count_among_those_above_the_maximum() -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode", replicas_max=3))
    harness.add_workers("a", 2, "starting")
    harness.pool("a").reset_decided(9, START)
    limits = Constraints(harness.acting_since_ms, unaccepted=frozenset({"a"}))
    assert harness.guard.apply(harness.refresh(), {}, limits, harness.now).targets == {"a": 6}


@pytest.mark.parametrize(
    ("knob", "code", "left_ms"),
    [
        ("cooldown_down_ms", "cooldown", 40_000),
        ("warm_up_ms", "warm_up", 40_000),
        ("stabilisation_ms", "stabilisation", 60_000),  # the higher recommendation was in force until now
    ],
)
def test_the_reason_of_a_wait_says_how_long_it_is(knob: str, code: str, left_ms: int) -> None:
    harness = GuardrailHarness(A, quorate=True, **{knob: MINUTE_MS})
    harness.apply()
    harness.pool("a").scaled_down_at_ms = harness.acting_since_ms = START
    harness.now += 20_000
    harness.report("a")
    (reason,) = harness.apply(a=3).limits
    assert (reason.code, reason.numbers["left_ms"]) == (code, left_ms)


def test_requested_workers_above_the_maximum_are_cancelled_at_once() -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode", replicas_max=3), quorate=False, step_down_max=1)
    harness.pool("a").reset_decided(9, START)
    assert harness.outcome() == ({"a": 4}, ["a:replicas_max", "a:no_data_no_shrink", "a:step_down", "a:replicas_max"])


def test_other_pools_change_within_the_budget_while_a_pool_is_above_its_maximum() -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode", replicas_max=3), B, step_down_max=1).budget(20)
    assert harness.outcome(b=6)[0] == {"a": 3, "b": 6}
    harness.report("a", silent=4)
    harness.now += 10_000
    harness.report("b")
    assert harness.outcome(b=6)[0] == {"a": 4, "b": 6}


def test_a_gpu_budget_overrides_the_steps_of_a_pool_above_its_maximum() -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode", replicas_max=3), current=8, step_down_max=1).budget(5)
    assert harness.outcome()[0] == {"a": 5}


def test_without_data_not_even_one_worker_is_removed() -> None:
    harness = GuardrailHarness(A, quorate=False, step_down_max=1)
    assert harness.outcome(a=1) == ({"a": 4}, ["a:no_data_no_shrink", "a:step_down"])


def test_the_step_limit_applies_after_stabilisation() -> None:
    harness = GuardrailHarness(A, step_down_max=1, stabilisation_ms=MINUTE_MS)
    harness.apply(a=2)
    assert harness.outcome(a=1) == ({"a": 3}, ["a:step_down", "a:stabilisation"])


def test_a_reason_has_the_wanted_and_the_allowed_count() -> None:
    (reason,) = GuardrailHarness(A, step_up_max=2).apply(a=8).limits
    assert (reason.code, reason.numbers) == (ReasonCode.STEP_UP, {"wanted": 8.0, "allowed": 6.0})
    assert reason.sentence() == "a: 8 limited to 6: the largest step up"


# -- random proposals
# ---------------------------------------------------------------------------------------------------


@st.composite
def tracks(draw: st.DrawFn) -> GuardrailHarness:
    pools = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        least = draw(st.integers(0, 4))
        most = draw(st.integers(max(1, least), 9))
        pools.append(
            PoolKnobs(name, "decode", draw(st.integers(1, 4)), least, most, draw(st.sampled_from([1, 600_000])))
        )
    spans = st.sampled_from([0, 10_000, MINUTE_MS])
    harness = GuardrailHarness(
        *pools,
        current=0,
        step_up_max=draw(st.integers(1, 4)),
        step_down_max=draw(st.integers(1, 4)),
        stabilisation_ms=draw(spans),
        cooldown_up_ms=draw(spans),
        cooldown_down_ms=draw(spans),
        warm_up_ms=draw(spans),
    )
    for pool in harness.model.pools.values():
        harness.add_workers(pool.name, draw(st.integers(0, 8)), draw(st.sampled_from(["ready", "starting"])))
        pool.decided = draw(st.none() | st.integers(0, 10))
        pool.scaled_up_at_ms = draw(st.sampled_from([-1, START - 5_000]))
        harness.report(pool.name, silent=draw(st.integers(0, len(pool.workers))))
        if leaving := draw(st.integers(0, 3)):
            harness.drain(pool.name, leaving)
    smallest = sum(p.replicas_min * p.gpus_per_worker for p in pools)
    largest = sum(p.replicas_max * p.gpus_per_worker for p in pools)
    most_gpus = draw(st.none() | st.integers(max(1, smallest), largest))
    harness.budget(most_gpus, draw(st.integers(0, largest if most_gpus is None else most_gpus)))
    harness.acting_since_ms = draw(st.sampled_from([START - 60 * MINUTE_MS, START - 5_000]))
    harness.now = START + draw(st.sampled_from([0, 2_000]))
    return harness


proposals = st.dictionaries(st.sampled_from("abc"), st.integers(-2, 14), max_size=3)


def gpus(harness: GuardrailHarness, counts: dict[str, int]) -> int:
    return sum(counts[pool.name] * pool.knobs.gpus_per_worker for pool in harness.model.pools.values())


@given(tracks(), proposals, proposals)
def test_any_proposal_respects_bounds_and_budget_and_shrinks_with_data_only(
    harness: GuardrailHarness, before: dict[str, int], proposed: dict[str, int]
) -> None:
    harness.apply(**before)
    current = {pool.name: pool.effective_target(harness.now) for pool in harness.model.pools.values()}
    draft = harness.apply(**proposed)
    limits, bit = harness.guard.hard, {(r.pool, r.code) for r in draft.limits}
    assert set(draft.targets) == set(harness.model.pools)
    for pool in harness.model.pools.values():
        name, target = pool.name, draft.targets[pool.name]
        highest = max(pool.knobs.replicas_max, min(current[name], pool.ready + pool.starting))
        assert pool.knobs.replicas_min <= target <= highest
        forced = {(name, ReasonCode.GPU_BUDGET_RECONCILE)} & bit
        if target < min(current[name], highest) and not forced:
            assert pool.has_quorum(0.8)
            assert target >= min(current[name], pool.scaling_base(harness.now)) - harness.guard.knobs.step_down_max
        if not {(name, ReasonCode.GPU_BUDGET_RECONCILE), (name, ReasonCode.REPLICAS_MIN)} & bit:
            assert target <= max(current[name], pool.knobs.replicas_min) + harness.guard.knobs.step_up_max
    total = gpus(harness, draft.targets)
    if limits.gpu_budget_max is not None:
        assert total <= limits.gpu_budget_max
        least = {p.name: max(current[p.name], p.knobs.replicas_min) for p in harness.model.pools.values()}
        leaving = sum(
            (pool.draining_workers() + max(0, current[pool.name] - draft.targets[pool.name]))
            * pool.knobs.gpus_per_worker
            for pool in harness.model.pools.values()
        )
        grows = any(draft.targets[name] > least[name] for name in least)
        assert not grows or total + leaving <= limits.gpu_budget_max, "growth waits for GPUs"
    elif total < limits.gpu_budget_min:
        assert all(draft.targets[p.name] >= p.knobs.replicas_max for p in harness.model.pools.values())


@given(tracks(), proposals)
def test_guardrails_are_idempotent(harness: GuardrailHarness, proposed: dict[str, int]) -> None:
    first = harness.apply(**proposed)
    # Restored growth is measured from the current target, and growth that waits for GPUs cannot be proposed again.
    codes = {reason.code for reason in first.limits}
    assume(not codes & {ReasonCode.GPU_BUDGET_RECONCILE, ReasonCode.GPU_BUDGET_MIN, ReasonCode.GPU_BUDGET_MAX})
    assert harness.apply(**first.targets).targets == first.targets


@given(tracks(), proposals)
def test_every_change_of_a_proposal_has_a_reason(harness: GuardrailHarness, proposed: dict[str, int]) -> None:
    current = {pool.name: pool.effective_target(harness.now) for pool in harness.refresh().pools.values()}
    draft = harness.apply(**proposed)
    for name, target in draft.targets.items():
        pool_reasons = [reason for reason in draft.limits if reason.pool == name]
        assert bool(pool_reasons) or target == proposed.get(name, current[name])
        assert not pool_reasons or pool_reasons[0].numbers["allowed"] == target, "the strongest reason comes first"
        assert all(reason.sentence() for reason in pool_reasons)
