"""Transfers of KV cache: bytes over bandwidth, and a pause of the request for the last stage only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.sim.serving.transfer import LAST_STAGE_TOKENS, STAGES_MAX, TransferLink

# 0.01 ms per token.
LINK = TransferLink(bandwidth_gbytes_per_s=16.0, latency_ms=2.0, kv_bytes_per_token=160_000)


def test_a_transfer_takes_its_bytes_over_the_bandwidth() -> None:
    assert LINK.transfer_ms(0) == 2.0
    assert LINK.transfer_ms(5_000) == pytest.approx(52.0)


def test_the_request_continues_until_the_last_stage() -> None:
    copy = LINK.live_copy(tokens=5_000, tokens_per_ms=0.05)
    # 5,000 tokens take 50 ms, in which 2.6 tokens are added: these are the last stage.
    assert copy.stages_ms == pytest.approx((52.0, 2.0 + 2.6 * 0.01))
    assert (copy.copying_ms, copy.downtime_ms) == pytest.approx((52.0, 2.026))


def test_a_short_cache_is_copied_in_one_stage() -> None:
    copy = LINK.live_copy(LAST_STAGE_TOKENS, tokens_per_ms=0.05)
    assert (copy.copying_ms, copy.downtime_ms) == (0.0, LINK.transfer_ms(LAST_STAGE_TOKENS))


def test_a_transfer_slower_than_the_growth_of_the_cache_is_abandoned() -> None:
    copy = LINK.live_copy(tokens=5_000, tokens_per_ms=200.0)
    assert len(copy.stages_ms) == STAGES_MAX
    assert copy.downtime_ms > LINK.transfer_ms(5_000)


@given(st.floats(0, 1e6), st.floats(0, 10), st.floats(0.1, 1_000), st.floats(0, 100))
def test_the_downtime_is_that_of_the_tokens_added_during_the_copy(
    tokens: float, tokens_per_ms: float, bandwidth: float, latency_ms: float
) -> None:
    link = TransferLink(bandwidth, latency_ms, 160_000)
    copy = link.live_copy(tokens, tokens_per_ms)
    assert 1 <= len(copy.stages_ms) <= STAGES_MAX
    left = copy.stages_ms[-2] * tokens_per_ms if copy.copying_ms else tokens
    assert copy.downtime_ms == link.transfer_ms(left)
    assert left <= LAST_STAGE_TOKENS or len(copy.stages_ms) == STAGES_MAX
