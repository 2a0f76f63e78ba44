"""Spread of the ITL between requests."""

import random
from math import fsum, sqrt
from statistics import NormalDist

import pytest

from loadline.core.engines.lengths import LengthDistribution, constant_length
from loadline.core.engines.stalls import stall_quantile


@pytest.mark.parametrize("tokens", [1.0, 100.0, 2_500.0])
def test_equal_outputs_have_the_normal_quantile_divided_by_the_root_of_their_length(tokens: float) -> None:
    assert stall_quantile(constant_length(tokens), 0.95) == pytest.approx(NormalDist().inv_cdf(0.95) / sqrt(tokens))


def test_shares_up_to_one_half_use_the_mean() -> None:
    assert [stall_quantile(constant_length(10.0), share) for share in (0.0, 0.3, 0.5)] == [0.0, 0.0, 0.0]


def test_short_outputs_dominate_a_mix() -> None:
    osl, rng = LengthDistribution((4.0, 400.0), (0.2, 0.8)), random.Random(1)
    found = stall_quantile(osl, 0.95)
    drawn = [rng.gauss(0.0, 1.0) / sqrt(tokens) for tokens in (4.0,) + (400.0,) * 4 for _ in range(20_000)]
    assert fsum(one <= found for one in drawn) / len(drawn) == pytest.approx(0.95, abs=0.005)


def test_the_quantile_matches_a_simulation_of_random_prompts() -> None:
    """Simulate outputs of 50 tokens, with 0.4 prompts of 30 ms per token on average."""
    rng, tokens, per_token, prompt_ms, outputs = random.Random(2), 50, 0.4, 30.0, 4_000
    late_ms = stall_quantile(constant_length(tokens), 0.95) * sqrt(per_token * prompt_ms**2)
    within = 0
    for _ in range(outputs):
        at, prompts = rng.expovariate(per_token), 0
        while at < tokens:
            at, prompts = at + rng.expovariate(per_token), prompts + 1
        within += prompts * prompt_ms / tokens <= per_token * prompt_ms + late_ms
    assert within / outputs == pytest.approx(0.95, abs=0.02)
