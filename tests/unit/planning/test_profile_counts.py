"""Sizing by profiles, compared with manual calculations."""

from math import ceil, sqrt
from pathlib import Path
from statistics import NormalDist

import pytest
from msgspec.structs import replace

from loadline.core.engines.lengths import LengthDistribution, constant_length
from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.erlang import workers_within
from loadline.core.planning.sizing.profile.counts import Demand, Size, sizing
from loadline.core.planning.sizing.replicas import REPLICAS_MAX
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from loadline.core.vocabulary.scalars import Role
from loadline.profile_files import read_decode, read_prefill
from tests.support.fleet_harness import START, fleet_of

DATA = Path(__file__).parents[2] / "vectors" / "data"
# A prompt of 500 tokens takes 10 ms; 500 requests decode in 50 ms, so a worker generates 10,000 tokens/s.
LINEAR = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=1e6, max_batch_requests=1_000))


def model(*pools: PoolKnobs, engine: EngineProfile = LINEAR, ttft_ms: float = 500.0, itl_ms: float = 50.0) -> Model:
    found = fleet_of(*pools).models["m"]
    found.objectives = ObjectiveKnobs(ttft_ms, itl_ms)
    for pool in found.pools.values():
        pool.engine = engine
    return found


def demand(requests_per_s: float, attainment: float = 0.0) -> Demand:
    return Demand(requests_per_s, constant_length(500.0), constant_length(100.0), attainment)


def sizes(served: Model, needs: Demand) -> dict[str, Size]:
    return sizing(served, needs)(1.0)


PREFILL, DECODE = PoolKnobs("p", "prefill", replicas_max=50), PoolKnobs("d", "decode", replicas_max=50)


@pytest.mark.parametrize(("requests_per_s", "workers"), [(0.0, 1), (50.0, 1), (100.0, 1), (101.0, 2), (730.0, 8)])
def test_for_the_mean_the_size_is_work_over_capacity(requests_per_s: float, workers: int) -> None:
    found = sizes(model(PREFILL, DECODE), demand(requests_per_s))
    assert {name: size.replicas for name, size in found.items()} == {"p": workers, "d": workers}
    assert found["p"].busy == pytest.approx(requests_per_s / 100.0)


@pytest.mark.parametrize(("correction", "prefill"), [(0.5, 4), (1.0, 8), (2.0, 8)])
def test_waiting_prompts_do_not_slow_down_prefill(correction: float, prefill: int) -> None:
    for attainment in (0.0, 0.95):
        corrected = replace(demand(730.0, attainment), prefill_correction=correction)
        found = sizes(model(PREFILL), corrected)["p"]
        assert found.busy == pytest.approx(7.3 * min(1.0, correction))
        assert found.replicas == prefill


def test_an_attainment_shortens_prefill_waits_and_adds_decode_headroom() -> None:
    found = sizes(model(PREFILL, DECODE), demand(730.0, 0.95))
    assert found["p"].replicas == workers_within(7.3, 10.0, [(490.0, 1.0)], 0.95)
    assert found["d"].replicas == ceil(7.3 + NormalDist().inv_cdf(0.95) * sqrt(7.3 / 500))
    busiest = replace(demand(730.0, 0.95), decode_peak=1.05)
    assert sizes(model(DECODE), busiest)["d"].replicas == 8, "the variation is included, and 7.3 workers are busy then"
    flat = replace(demand(730.0, 0.95), decode_peak=1.0)
    assert sizes(model(DECODE), replace(flat, requests_per_s=795.0))["d"].replicas == 9
    assert sizes(model(DECODE), replace(busiest, requests_per_s=795.0))["d"].replicas == 8
    tight = sizes(model(PREFILL, DECODE, ttft_ms=11.0), demand(730.0, 0.95))
    assert tight["p"].replicas > found["p"].replicas


def test_an_aggregated_worker_decodes_slower_during_prefill() -> None:
    pool = PoolKnobs("both", "aggregated", replicas_max=50)
    found = sizes(model(pool), demand(200.0))["both"]
    # 2 of n workers' time is prefill; the rest must decode 20,000 tokens within 50 ms * (1 - 2/n).
    for workers in range(3, 50):
        batch = (50.0 * (1 - 2 / workers) - 10.0) / 0.08
        rate = batch / (50.0 * (1 - 2 / workers)) * 1_000
        if batch > 0 and 2 + 20_000 / rate <= workers:
            break
    assert found.replicas == workers


def test_cached_prefixes_need_no_prefill_but_cache_blocks() -> None:
    hits = replace(demand(730.0), kv_hit_rate=0.5)
    found = sizes(model(PREFILL, DECODE), hits)
    assert found["p"].busy == pytest.approx(3.65)
    assert found["d"] == sizes(model(PREFILL, DECODE), demand(730.0))["d"]
    assert sizes(model(PREFILL), replace(hits, kv_hit_rate=1.0))["p"].busy == pytest.approx(7.3 * 0.05)
    both = PoolKnobs("both", "aggregated", replicas_max=50)
    whole, half = (sizes(model(both), one)["both"] for one in (demand(730.0, 0.95), replace(hits, attainment=0.95)))
    assert half.replicas < whole.replicas
    assert sizes(model(PREFILL, ttft_ms=9.0), hits)["p"].infeasible is None, "the uncached part of a prompt takes 5 ms"


def test_a_corrected_engine_is_sized_like_an_equally_slow_one() -> None:
    linear = LINEAR.linear
    assert linear is not None
    slow = EngineProfile(linear=replace(linear, alpha=2 * linear.alpha, beta=2 * linear.beta))
    corrected = sizes(model(DECODE), replace(demand(730.0), decode_correction=2.0))
    assert corrected["d"].busy == pytest.approx(sizes(model(DECODE, engine=slow), demand(730.0))["d"].busy)


def test_an_unreachable_objective_is_reported_and_the_pool_sized_for_its_work() -> None:
    found = sizes(model(PREFILL, ttft_ms=9.0), demand(730.0))["p"]
    assert found.infeasible is not None
    assert found.infeasible.code == ReasonCode.SLA_INFEASIBLE
    assert found.infeasible.numbers["best_ms"] == pytest.approx(10.0)
    assert found.replicas == 8
    both = sizes(model(PoolKnobs("both", "aggregated", replicas_max=50), ttft_ms=9.0), demand(730.0))["both"]
    assert both.infeasible is not None
    assert both.replicas >= 7.3 + 6.57


@pytest.mark.parametrize(
    ("role", "ttft_ms", "itl_ms"),
    [
        ("prefill", 0.01, 50.0),
        ("decode", 500.0, 10.0),
        ("aggregated", 0.01, 50.0),
        ("aggregated", 500.0, 10.0),
    ],
)
def test_an_objective_below_any_latency_is_a_problem(role: Role, ttft_ms: float, itl_ms: float) -> None:
    pool = PoolKnobs("p", role, replicas_max=50)
    problem = sizes(model(pool, ttft_ms=ttft_ms, itl_ms=itl_ms), demand(730.0))["p"].problem
    assert problem is not None
    assert problem.code == ReasonCode.SLA_INFEASIBLE
    assert problem.numbers["best_ms"] == pytest.approx(0.02 if ttft_ms < 1.0 else 10.08)


@pytest.mark.parametrize(("late_alone", "within"), [(0.02, 0.95 / 0.98), (0.5, 1.0 - 0.05 / 3.0)])
def test_prompts_that_are_late_alone_use_up_permitted_misses(late_alone: float, within: float) -> None:
    """Prompts of 100 tokens take 2 ms and may wait for 498 ms; those of 40,000 take 800 ms and are always late."""
    mixed = LengthDistribution((100.0, 40_000.0), (1.0 - late_alone, late_alone))
    found = sizes(model(PREFILL), needs := Demand(12.0 / mixed.mean * 1_000.0, mixed, constant_length(100.0), 0.95))
    service_ms, spread = 0.02 * mixed.mean, 0.5 * mixed.mean_square / mixed.mean**2
    busy = needs.requests_per_s * service_ms / 1_000.0
    workers, less = (workers_within(busy, service_ms, [(498.0, 1.0)], one, spread) for one in (within, 0.9))
    assert found["p"].replicas == workers
    assert less is not None
    assert found["p"].replicas > less
    assert found["p"].infeasible is None, "most of the prompts can meet the objective"


def test_a_cache_below_one_request_is_a_problem() -> None:
    tiny = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=100.0))
    for pool in (DECODE, PoolKnobs("both", "aggregated", replicas_max=50)):
        problem = sizes(model(pool, engine=tiny), demand(10.0))[pool.name].problem
        assert problem is not None
        assert problem.code == ReasonCode.KV_CACHE_TOO_SMALL


def test_missing_and_unusable_profiles_are_reported_with_a_remedy() -> None:
    for engine, words in (
        (EngineProfile(), "prefill_profile"),
        (EngineProfile(problem="x.npz: broken"), "x.npz: broken"),
    ):
        problem = sizes(model(PREFILL, engine=engine), demand(1.0))["p"].problem
        assert problem is not None
        assert problem.code == ReasonCode.PROFILE_UNUSABLE
        assert words in problem.sentence()


def test_the_cheapest_pool_of_a_role_serves_first() -> None:
    cheap, expensive = replace(DECODE, name="b", replicas_max=3), replace(DECODE, name="a", gpus_per_worker=2)
    pools = model(cheap, expensive)
    # On two GPUs a linear worker is as fast as on one, so it costs twice as much; its minimum count serves a part.
    assert {name: size.replicas for name, size in sizes(pools, demand(250.0)).items()} == {"b": 2, "a": 1}
    assert {name: size.replicas for name, size in sizes(pools, demand(600.0)).items()} == {"b": 3, "a": 3}


def test_minimum_replicas_serve_their_share_first() -> None:
    cheap, expensive = replace(DECODE, name="b"), replace(DECODE, name="a", gpus_per_worker=2, replicas_min=4)
    for requests_per_s, counts in ((250.0, {"b": 1, "a": 4}), (730.0, {"b": 4, "a": 4}), (0.0, {"b": 1, "a": 4})):
        found = sizes(model(cheap, expensive), demand(requests_per_s))
        assert {name: size.replicas for name, size in found.items()} == counts


@pytest.mark.parametrize(("current", "first"), [((7, 1), "a"), ((1, 7), "b"), ((3, 5), "b"), ((1, 1), "b")])
def test_noise_between_equal_pools_does_not_move_the_demand(current: tuple[int, int], first: str) -> None:
    pools = model(replace(DECODE, name="a"), replace(DECODE, name="b"))
    linear = LINEAR.linear
    assert linear is not None
    pools.pools["a"].engine = EngineProfile(linear=replace(linear, beta=linear.beta * 1.05))
    for pool, desired in zip(pools.pools.values(), current, strict=True):
        pool.decided = desired
    found = sizes(pools, demand(730.0))
    assert found[first].replicas > 1
    assert sum(size.replicas for size in found.values()) == found[first].replicas + 1


def test_a_correction_beyond_the_objective_is_reported_and_the_pool_sized_for_its_work() -> None:
    # A token of a single request takes 10.08 ms, so above a correction of 4.96 the objective of 50 ms is infeasible.
    for pool in (DECODE, PoolKnobs("both", "aggregated", replicas_max=50)):
        found = sizes(model(pool), replace(demand(100.0), decode_correction=5.0))[pool.name]
        assert found.problem is None
        assert found.infeasible is not None
        assert found.infeasible.numbers["best_ms"] == pytest.approx(5 * 10.08, rel=0.01)
        assert found.infeasible.numbers["objective_ms"] == 50.0
        assert found.replicas >= 5, "five times the service time is five times the work"


def test_near_the_best_latency_the_size_of_an_aggregated_pool_is_finite() -> None:
    engine = EngineProfile(linear=LinearKnobs(49.0, 0.5, 8.0, 0.1, max_kv_tokens=4e5))
    pool, needs = (
        PoolKnobs("both", "aggregated", replicas_max=10_000),
        Demand(1.0, constant_length(2_000.0), constant_length(200.0), 0.95),
    )
    near, above = (sizes(model(pool, engine=engine, itl_ms=itl_ms), needs)["both"] for itl_ms in (49.6, 52.0))
    assert (above.replicas, above.infeasible) == (13, None)
    assert near.replicas == 1, "the load is a third of one worker's capacity"
    assert near.infeasible is not None
    assert near.infeasible.numbers["best_ms"] > 49.6


def test_any_objective_and_any_rate_give_a_size() -> None:
    pools = model(PoolKnobs("both", "aggregated", replicas_max=50), ttft_ms=1e300, itl_ms=1e300)
    assert sizes(pools, demand(1e18))["both"].replicas == REPLICAS_MAX


def test_sizes_respect_minimum_replicas() -> None:
    assert sizes(model(replace(PREFILL, replicas_min=4)), demand(0.0))["p"].replicas == 4


def test_a_size_exceeds_the_maximum_by_what_no_pool_of_the_role_can_serve() -> None:
    assert sizes(model(replace(PREFILL, replicas_max=2)), demand(730.0))["p"].replicas == 8
    cheap, expensive = replace(DECODE, name="b", replicas_max=3), replace(DECODE, name="a", gpus_per_worker=2)
    expensive = replace(expensive, replicas_max=3)
    for requests_per_s, counts in ((600.0, {"b": 3, "a": 3}), (730.0, {"b": 5, "a": 3}), (0.0, {"b": 1, "a": 1})):
        found = sizes(model(cheap, expensive), demand(requests_per_s))
        assert {name: size.replicas for name, size in found.items()} == counts


def test_a_throughput_per_gpu_of_a_node_is_multiplied_by_the_gpus_of_a_node() -> None:
    measured = read_prefill(DATA / "dynamo_h200_llama3.1-8b-fp8_tp1_prefill.npz")
    node = replace(measured, tokens_per_s_per_gpu=tuple(rate / 8 for rate in measured.tokens_per_s_per_gpu))
    decode = read_decode(DATA / "dynamo_h200_llama3.1-8b-fp8_tp1_decode.npz")
    by_node = replace(decode, tokens_per_s_per_gpu=tuple(rate / 8 for rate in decode.tokens_per_s_per_gpu))
    one, eight = EngineProfile(measured, decode), EngineProfile(node, by_node)
    assert (one.prefill_gpus(2), one.decode_gpus(2), eight.prefill_gpus(2), eight.decode_gpus(2)) == (1, 1, 8, 8)
    counts = [
        {name: size.replicas for name, size in sizes(model(PREFILL, DECODE, engine=engine), demand(400.0)).items()}
        for engine in (one, eight)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("pools", [(PREFILL, DECODE), (PoolKnobs("a", "aggregated", replicas_max=50),)])
@pytest.mark.parametrize("attainment", [0.0, 0.95])
def test_requests_of_unknown_length_need_one_worker(pools: tuple[PoolKnobs, ...], attainment: float) -> None:
    found = sizes(model(*pools), Demand(20.0, constant_length(0.0), constant_length(0.0), attainment))
    assert {size.replicas for size in found.values()} == {1}


def test_a_batch_is_limited_by_the_reported_cache() -> None:
    # 55,000 tokens are 100 requests of 500 tokens and half of 100; 95 of them are planned, which take 17.6 ms.
    record = WorkerRecord("m", "d", "w", "decode", 1, kv_blocks_total=1_100, block_size_tokens=50)
    fleet = fleet_of(DECODE)
    fleet.register(RegisteredWorker(record, 5), START)
    fleet.models["m"].pools["d"].engine = LINEAR
    busy = sizes(fleet.models["m"], demand(100.0))["d"].busy
    assert busy == pytest.approx(100.0 * 100.0 * (10.0 + 0.08 * 95) / 95 / 1_000.0)


def test_a_size_has_the_needed_count_without_the_minimum() -> None:
    for pool, wanted in ((replace(PREFILL, replicas_min=16), 16), (replace(PREFILL, replicas_max=2), 3)):
        found = sizes(model(pool), demand(250.0))["p"]
        assert (found.replicas, found.needed) == (wanted, 3)
        assert found.busy == pytest.approx(2.5)


def test_prefill_workers_are_sized_by_utilisation() -> None:
    long = Demand(250.0, constant_length(1e7), constant_length(100.0), 0.95)
    cache = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=1e9))
    found = sizes(model(PoolKnobs("a", "aggregated", replicas_max=50), engine=cache), long)["a"]
    assert 0.8 * found.needed < found.busy
    assert found.needed == found.replicas > 50, "the maximum"
