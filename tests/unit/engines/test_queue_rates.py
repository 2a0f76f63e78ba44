"""Maximum request rate of one of several engines within its targets, by role."""

import math

import pytest
from msgspec.structs import replace

from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.queue_rates import QueueEngine, RequestLoad, max_engine_rate, round_up_length
from loadline.core.engines.queue_sizing import Targets
from loadline.core.vocabulary.scalars import Role

ENGINE = QueueEngine(LinearTimes(10.0, 0.1, 5.0, 0.05), batch_requests=256, pass_requests=8)
WORK = RequestLoad(100.0, 1_000.0, 200.0)
TARGETS = Targets(500.0, 50.0, attainment=0.95)
ROLES: tuple[Role, ...] = ("prefill", "decode", "aggregated")


def rate(
    role: Role, targets: Targets = TARGETS, work: RequestLoad = WORK, engine: QueueEngine = ENGINE, most: int = 1_000
) -> float:
    return max_engine_rate(role, engine, work, targets, most).requests_per_s


def test_the_role_determines_the_bound() -> None:
    bounds = {role: max_engine_rate(role, ENGINE, WORK, TARGETS, 1_000).bound for role in ROLES}
    # A full batch of 256 decodes in 35.6 ms, within 50 ms, so the wait for the batch is the bound.
    assert bounds == {"prefill": "ttft", "decode": "ttft", "aggregated": "itl"}
    assert max_engine_rate("decode", ENGINE, WORK, Targets(500.0, 30.0, attainment=0.95), 1).bound == "itl"
    assert rate("aggregated") < min(rate("prefill"), rate("decode")), (
        "an aggregated engine computes prompts and decodes"
    )
    # One prompt takes 55 ms, and a batch of 256 decodes 200 tokens in 7.1 s: both are independent of the objectives.
    assert rate("prefill") < 1_000.0 / 55.0 * 1.1
    assert rate("decode") < 256 / (199 * 35.6) * 1_000.0


@pytest.mark.parametrize("role", ROLES)
def test_more_load_needs_more_engines(role: Role) -> None:
    plain = rate(role)
    harder = [
        rate(role, work=replace(WORK, isl_tokens=1_500.0)) if role != "decode" else 0.0,
        rate(role, work=replace(WORK, osl_tokens=300.0)) if role != "prefill" else 0.0,
        rate(role, replace(TARGETS, attainment=0.999)),
        rate(role, replace(TARGETS, ttft_ms=120.0, itl_ms=20.0)),
    ]
    assert max(harder) < plain
    assert rate(role, replace(TARGETS, attainment=0.0)) > plain, "the mean is not the 95th percentile"


def test_prompts_share_the_engines_of_a_pool() -> None:
    lone, pooled = (rate("prefill", work=replace(WORK, requests_per_s=many)) for many in (1.0, 1_000.0))
    assert pooled > 1.1 * lone
    assert rate("prefill", work=replace(WORK, requests_per_s=1_000.0), most=1) == lone, "the pool has no other engines"


def test_the_number_of_engines_is_sufficient_and_not_excessive() -> None:
    """The rate is that of slightly fewer engines, since each serves more if there are more."""
    for many in (1.0, 20.0, 90.0, 400.0):
        count = math.ceil(many / rate("prefill", work=replace(WORK, requests_per_s=many)))
        assert rate("prefill", work=replace(WORK, requests_per_s=1e6), most=count) * count >= many


def test_many_short_prompts_share_a_pass() -> None:
    costly = QueueEngine(LinearTimes(10.0, 0.1, 40.0, 0.02), batch_requests=256, pass_requests=54)
    short = RequestLoad(400.0, 150.0, 1.0)
    found = rate("prefill", Targets(200.0, attainment=0.95), short, costly)
    assert found > 4 * 1_000.0 / 43.0, "one after the other 23 a second are all that an engine can do"


def test_a_prompt_waits_for_the_current_iteration() -> None:
    slow = replace(ENGINE, times=replace(ENGINE.times, alpha=45.0))
    targets = Targets(90.0, 1_000.0, attainment=0.95)
    found = max_engine_rate("aggregated", slow, WORK, targets, 1_000)
    assert (found.requests_per_s, found.bound) == (0.0, "ttft")
    assert found.lowest_ms == pytest.approx(45.0 + 55.0, rel=0.03)
    assert rate("prefill", targets) > 0.0


def test_an_infeasible_target_is_named() -> None:
    cases: tuple[tuple[Role, Targets, str, float], ...] = (
        ("prefill", Targets(50.0, attainment=0.95), "ttft", 55.0),
        ("decode", Targets(itl_ms=9.0, attainment=0.95), "itl", 10.1),
        ("aggregated", Targets(itl_ms=9.0, attainment=0.95), "itl", 10.1),
    )
    for role, targets, bound, least_ms in cases:
        found = max_engine_rate(role, ENGINE, WORK, targets, 1_000)
        assert (found.requests_per_s, found.bound) == (0.0, bound)
        assert found.lowest_ms == pytest.approx(least_ms, rel=0.03)


def test_an_output_of_one_token_needs_no_decode() -> None:
    one = replace(WORK, osl_tokens=1.0)
    assert rate("aggregated", work=one) == rate("prefill", work=one)


def test_similar_lengths_have_the_same_rate() -> None:
    assert rate("aggregated", work=replace(WORK, isl_tokens=1_003.0)) == rate("aggregated")
    assert round_up_length(0.0) == 0.0
    for value in (1e-6, 1.0, 7.3, 4e9):
        assert value <= round_up_length(value) * (1.0 + 1e-9) <= value * 1.021
        assert round_up_length(round_up_length(value)) == round_up_length(value)
