"""Prefix cache: hits of leading blocks, lookups without effect, and eviction of the least recently used."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.sim.serving.prefix import PrefixCache
from loadline.sim.simulation import Scenario, Simulation
from loadline.traces import Arrival
from tests.support.simulated_fleets import aggregated, trace


def test_only_leading_blocks_count() -> None:
    cache = PrefixCache(blocks_max=10, block_tokens=512)
    cache.insert((1, 2, 3))
    assert [cache.hit_tokens(prefix) for prefix in ((1, 2, 3, 4), (1, 9, 3), (9, 2), ())] == [1_536, 512, 0, 0]


def test_the_least_recently_used_block_and_the_end_of_a_prompt_are_evicted_first() -> None:
    cache = PrefixCache(blocks_max=4, block_tokens=1)
    cache.insert((1, 2, 3))
    cache.insert((7, 8))
    assert cache.hit_tokens((1, 2, 3)) == 2
    cache.insert((1, 2))
    cache.insert((9,))
    # A lookup of 7 and 8 does not keep them; the use of 1 and 2 does.
    assert [cache.hit_tokens(prefix) for prefix in ((1, 2), (7, 8), (9,))] == [2, 1, 1]


def test_a_prompt_longer_than_the_cache_leaves_its_beginning() -> None:
    cache = PrefixCache(blocks_max=3, block_tokens=1)
    cache.insert(range(10))
    assert (len(cache), cache.hit_tokens(range(10))) == (3, 3)


@given(st.lists(st.lists(st.integers(0, 12), unique=True, max_size=8), max_size=30), st.integers(1, 10))
def test_the_cache_behaves_like_a_list_in_the_order_of_use(prompts: list[list[int]], blocks_max: int) -> None:
    cache = PrefixCache(blocks_max, 1)
    used: list[int] = []  # the newest first
    for prompt in prompts:
        hits = next((i for i, block in enumerate(prompt) if block not in used), len(prompt))
        assert cache.hit_tokens(prompt) == hits
        cache.insert(prompt)
        used = (prompt + [block for block in used if block not in prompt])[:blocks_max]
        assert len(cache) == len(used)


def test_the_gateway_reports_the_hits_of_the_caches_of_workers() -> None:
    setup = aggregated(2, fleet={"routing": "kv_aware"}, prefix_cache_blocks=100)
    prompts = [Arrival(1.0 + index, 1_000 + index, 5, prefix=(1, 2 + index)) for index in range(5)]
    simulation = Simulation(Scenario("test", *setup, trace(prompts)))
    snapshots = []
    simulation.run(0.0)
    for second in range(2, 8):
        simulation.run(second * 1_000.0 + 500.0)
        snapshots.append(simulation.agent.controller.state.fleet.models["m"].traffic.totals)
    rates = [after.since(before).kv_hit_rate for before, after in pairwise(snapshots)]
    assert rates == [pytest.approx(512 / (1_000 + index)) for index in range(1, 5)] + [0.0]
