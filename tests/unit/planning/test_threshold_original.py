"""The acceptance cases of the original planner, played to the threshold planner."""

from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from tests.support.threshold import DECODE, PREFILL, PULL_MS, Bench, codes, reason


def original(p: int, d: int, interval_ms: int) -> Bench:
    bench = Bench(
        PREFILL,
        DECODE,
        workers=0,
        adjustment_interval_ms=interval_ms,
        prefill_queue_scale_up_threshold=5,
        prefill_queue_scale_down_threshold=0.2,
    )
    bench.grow("prefill", p)
    bench.grow("decode", d)
    return bench


def play(bench: Bench, queue: list[int], kv: float) -> Recommendation:
    bench.kv = kv
    for number, value in enumerate(queue):
        bench.now += PULL_MS if number else 0
        bench.queue = value
        opinion = bench.look_once()
    return opinion


def test_original_trend_blocks() -> None:
    opinion = play(original(1, 1, 2_000), [10, 8, 6], 0.7)
    assert opinion.targets == {}
    assert reason(opinion, "prefill").numbers["predicted"] == -6
    assert reason(opinion, "prefill").code == ReasonCode.QUEUE_TREND_FALLING


def test_original_prefill_up() -> None:
    opinion = play(original(1, 1, 2_000), [6, 7, 8], 0.7)
    assert opinion.targets == {"prefill": 2}
    assert reason(opinion, "prefill").numbers["predicted"] == 14


def test_original_prefill_down() -> None:
    assert play(original(3, 1, 2_000), [0, 0, 0], 0.7).targets == {"prefill": 2}


def test_original_decode_down() -> None:
    assert play(original(1, 2, 2_000), [1, 1, 1], 0.2).targets == {"decode": 1}


def test_original_workers_changed_but_each_pool_minds_its_own() -> None:
    """There a change of one role's workers stopped both roles: one worker that flaps would stop the model for ever."""
    bench = original(1, 1, 2_000)
    bench.pool("prefill").set_desired(1, bench.now)
    play(bench, [9, 9], 0.95)
    bench.pool("prefill").set_desired(2, bench.now)
    bench.grow("prefill", 1)
    bench.now += PULL_MS
    opinion = bench.look_once()
    assert opinion.targets == {"decode": 2}
    assert ReasonCode.ADJUSTMENT_INTERVAL in codes(opinion)
