"""Predicted latencies: the inverse of the largest rate within targets."""

import pytest
from msgspec.structs import replace

from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.queue_prediction import QueuePrediction, predict
from loadline.core.engines.queue_rates import QueueEngine, RequestLoad, max_engine_rate
from loadline.core.engines.queue_sizing import Targets
from loadline.core.vocabulary.scalars import Role

ENGINE = QueueEngine(LinearTimes(10.0, 0.1, 5.0, 0.05), batch_requests=256, pass_requests=8)
LOAD = RequestLoad(1.0, 1_000.0, 200.0)


def predicted(role: Role, requests_per_s: float, engines: int = 1, engine: QueueEngine = ENGINE) -> QueuePrediction:
    return predict(role, engine, replace(LOAD, requests_per_s=requests_per_s), engines)


@pytest.mark.parametrize(
    ("role", "targets", "bound"),
    [
        ("prefill", Targets(ttft_ms=400.0), "ttft"),
        ("decode", Targets(itl_ms=25.0), "itl"),
        ("aggregated", Targets(ttft_ms=2_000.0, itl_ms=25.0), "itl"),
        ("aggregated", Targets(ttft_ms=150.0), "ttft"),
    ],
)
def test_the_prediction_at_the_largest_rate_within_a_target_is_the_target(
    role: Role, targets: Targets, bound: str
) -> None:
    most = max_engine_rate(role, ENGINE, LOAD, targets, 1)
    assert most.bound == bound
    found = predicted(role, most.requests_per_s)
    value, target = (found.ttft_ms, targets.ttft_ms) if bound == "ttft" else (found.itl_ms, targets.itl_ms)
    assert value == pytest.approx(target, rel=1e-3)
    assert 0.0 < found.utilisation < 1.0


def test_a_role_has_the_latencies_that_it_determines() -> None:
    assert predicted("prefill", 5.0).itl_ms is None
    assert predicted("decode", 5.0).ttft_ms is None
    both = predicted("aggregated", 1.0)
    assert both.ttft_ms is not None
    assert both.itl_ms is not None


@pytest.mark.parametrize("role", ["prefill", "aggregated"])
def test_beyond_saturation_requests_accumulate(role: Role) -> None:
    saturated = max_engine_rate(role, ENGINE, LOAD, Targets(), 1).requests_per_s
    assert predicted(role, 0.9 * saturated).utilisation == pytest.approx(0.9, rel=0.01)
    over = predicted(role, 1.2 * saturated)
    assert over.utilisation == pytest.approx(1.2, rel=0.01)
    assert over.ttft_ms is None


def test_an_idle_engine_has_the_latencies_of_one_request() -> None:
    idle = predicted("aggregated", 0.0)
    # An iteration of one request takes 10.1 ms, and a prompt of 1,000 tokens 55 ms.
    assert idle.itl_ms == pytest.approx(10.1, rel=0.05)
    assert idle.ttft_ms == pytest.approx(10.0 + 55.0, rel=0.5)
    assert idle.utilisation == 0.0


def test_engines_share_the_load() -> None:
    assert predicted("decode", 40.0, engines=4) == predicted("decode", 10.0)
    pooled = predicted("prefill", 60.0, engines=4).ttft_ms
    alone = predicted("prefill", 15.0).ttft_ms
    assert pooled is not None
    assert alone is not None
    assert pooled <= alone, "a prompt goes to a free engine"
