"""Guardrails that limit a scale-down to the workers that can be removed."""

from msgspec.structs import replace

from loadline.core.fleet.pool import DRAINS_MAX, PoolKnobs
from loadline.core.planning.guardrails.constraints import Constraints, SupplyHeadroom
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from tests.support.guardrail_harness import A, GuardrailHarness

LARGE = PoolKnobs("a", "decode", replicas_max=10_000)
SIZE = DRAINS_MAX + 50


def apply(harness: GuardrailHarness, wanted: int, *, draining: int = 0) -> Proposal:
    """Return the proposal for a pool with a number of open drains."""
    limits = Constraints(harness.acting_since_ms, draining={"a": draining})
    return harness.guard.apply(harness.refresh(), {"a": wanted}, limits, harness.now)


def test_a_scale_down_waits_for_the_drains_that_are_open() -> None:
    harness = GuardrailHarness(LARGE, current=SIZE, step_down_max=1_000)
    for draining, lowest in [(0, 50), (30, 80), (DRAINS_MAX, SIZE), (DRAINS_MAX + 5, SIZE)]:
        limited = apply(harness, 1, draining=draining)
        assert (limited.targets, limited.wanted) == ({"a": lowest}, {"a": lowest})
        (reason,) = limited.limits
        assert (reason.code, reason.numbers["drains_max"]) == (ReasonCode.DRAIN_LIMIT, DRAINS_MAX)
        allowed = apply(harness, lowest, draining=draining)
        assert (allowed.targets, allowed.limits) == ({"a": lowest}, [])


def test_a_pool_without_open_drains_shrinks_by_as_many_as_there_may_be() -> None:
    harness = GuardrailHarness(LARGE, current=SIZE, step_down_max=1_000)
    assert harness.apply(a=1).targets == {"a": SIZE - DRAINS_MAX}


def test_workers_that_drain_do_not_count_among_those_that_stay() -> None:
    harness = GuardrailHarness(LARGE, current=SIZE, step_down_max=1_000)
    harness.drain("a", 20)
    for wanted, target in [(40, 70), (70, 70), (75, 75), (SIZE, SIZE)]:
        proposal = apply(harness, wanted, draining=20)
        assert (proposal.targets, len(proposal.limits)) == ({"a": target}, wanted < target)


def test_a_pool_of_requested_workers_alone_is_cancelled_whatever_drains() -> None:
    harness = GuardrailHarness(LARGE, current=0)
    harness.pool("a").set_decided(9, harness.now)
    assert apply(harness, 1, draining=DRAINS_MAX).targets == {"a": 1}


def test_a_pool_whose_platform_removes_the_highest_number_needs_numbers_to_shrink_and_not_to_grow() -> None:
    harness = GuardrailHarness(A)
    pool = harness.pool("a")
    pool.victim_rule = "highest_ordinal"
    assert apply(harness, 2).targets == {"a": 2}, "all workers have a number"
    for name in ("odd", "even"):
        record = WorkerRecord("m", "a", name, "decode", 1)
        harness.fleet.register(RegisteredWorker(record, 5), harness.now)
    pool.decided = 6
    harness.report("a")
    limited = apply(harness, 2)
    assert (limited.targets, limited.wanted) == ({"a": 6}, {"a": 6})
    assert [(reason.code, reason.detail) for reason in limited.limits] == [(ReasonCode.UNNUMBERED_WORKER, "even")]
    for wanted in (6, 7):
        proposal = apply(harness, wanted)
        assert (proposal.targets, proposal.limits) == ({"a": wanted}, [])
    pool.victim_rule = "newest"
    assert apply(harness, 2).targets == {"a": 2}


def test_a_pool_with_workers_of_another_one_grows_as_any_other() -> None:
    harness = GuardrailHarness(A, PoolKnobs("b", "decode"))
    record = replace(WorkerRecord("m", "a", "b9", "decode", 1), home_pool="b")
    harness.fleet.register(RegisteredWorker(record, 5), harness.now)
    harness.report("a")
    harness.pool("b").victim_rule = "newest"
    current = harness.pool("a").effective_target(harness.now)
    for wanted in (current, current + 1):
        proposal = apply(harness, wanted)
        assert (proposal.targets["a"], proposal.limits) == (wanted, [])


def test_reasons_of_the_supply_follow_those_of_the_guardrails() -> None:
    harness = GuardrailHarness(A, step_up_max=1)
    reason = Reason.of(ReasonCode.GPUS_OCCUPIED, "a", free=1)
    limits = Constraints(harness.acting_since_ms, supply=SupplyHeadroom({}, {}, reasons=(reason,)))
    proposal = harness.guard.apply(harness.refresh(), {"a": 9}, limits, harness.now)
    assert [one.code for one in proposal.limits] == [ReasonCode.STEP_UP, ReasonCode.GPUS_OCCUPIED]
