from collections.abc import Callable

import pytest

from loadline.sidecar.engine_state import SILENCE_MAX_MS, STANDSTILL_MAX_MS, EngineState
from tests.support.engine_pages import page, vllm

IDLE, BUSY = page(vllm()), page(vllm(running=1))
HTML = b"<html>\n"


def state_of(*pages: bytes) -> EngineState:
    """Return a state that has read these pages, a second apart, the first at 1 s."""
    state = EngineState("vllm", 0)
    for number, body in enumerate(pages, start=1):
        state.answered(body, number * 1_000, number * 1_000 + 10)
    return state


def test_an_engine_is_away_until_its_first_metrics() -> None:
    assert state_of().away
    assert state_of(HTML).away
    state = state_of(IDLE)
    assert (state.away, state.starts) == (False, 1)


def test_two_refused_connections_in_a_row_are_an_engine_that_is_gone() -> None:
    state = state_of(IDLE)
    state.failed("refused", 2_000, refused=True)
    state.answered(IDLE, 3_000, 3_000)
    state.failed("refused", 4_000, refused=True)
    assert not state.away
    state.failed("refused", 5_000, refused=True)
    assert state.away


def test_an_engine_that_does_not_answer_is_away_after_its_silence() -> None:
    state = state_of(IDLE)
    state.failed("timeout", 1_010 + SILENCE_MAX_MS - 1)
    assert not state.away
    state.failed("timeout", 1_010 + SILENCE_MAX_MS)
    assert state.away


def test_an_engine_that_answers_with_other_pages_is_not_away() -> None:
    state = state_of(IDLE)
    for second in range(2, 100):
        assert state.answered(HTML, second * 1_000, second * 1_000) is None
    assert not state.away
    assert "not a page of metrics" in state.problem


def test_the_problem_names_the_engine_whose_page_it_is() -> None:
    state = EngineState("sglang", 0)
    assert state.answered(IDLE, 1, 2) is None
    assert "--engine vllm" in state.problem


def test_every_start_is_counted_once() -> None:
    state = state_of(IDLE, IDLE, page(vllm(started_s=1.8e9)), page(vllm(started_s=1.8e9)))
    assert state.starts == 2
    for second in (5, 6):
        state.failed("refused", second * 1_000, refused=True)
    state.answered(IDLE, 7_000, 7_000)
    assert state.starts == 3


@pytest.mark.parametrize(
    ("pages", "empty"),
    [
        ((IDLE, IDLE), True),
        ((IDLE, IDLE, BUSY), False),
        ((BUSY, IDLE), False),
        ((IDLE, HTML, IDLE), False),
        ((IDLE, page(vllm(waiting=1)), IDLE), False),
        ((IDLE, page({**vllm(), 'vllm:num_requests_waiting{engine="0",model_name="tiny"}': "NaN"}), IDLE), False),
    ],
)
def test_two_readings_in_a_row_without_requests_are_an_empty_engine(pages: tuple[bytes, ...], *, empty: bool) -> None:
    assert state_of(*pages).empty_since(1_000) == empty


def test_readings_that_were_asked_for_before_do_not_count() -> None:
    state = state_of(IDLE, IDLE, IDLE)
    assert state.empty_since(2_000)
    assert not state.empty_since(2_001)


def test_an_engine_that_is_gone_is_empty() -> None:
    state = state_of(BUSY)
    for second in (2, 3):
        state.failed("refused", second * 1_000, refused=True)
    assert state.empty_since(1_000)


def test_an_engine_whose_page_fails_may_have_requests() -> None:
    """A server that is busy answers 500, or a page above 16 MiB, while it streams on."""
    state = state_of(BUSY)
    for second in range(2, 100):
        state.failed("HTTP 500", second * 1_000, heard=True)
    assert state.away
    assert not state.empty_since(1_000)


def test_an_engine_that_does_not_answer_at_all_for_a_minute_is_gone() -> None:
    state = state_of(BUSY)
    state.failed("HTTP 500", 5_000, heard=True)
    state.failed("timeout", 5_000 + STANDSTILL_MAX_MS - 1)
    assert not state.empty_since(1_000)
    state.failed("timeout", 5_000 + STANDSTILL_MAX_MS)
    assert state.empty_since(1_000)


def test_an_engine_whose_cache_changes_is_not_empty() -> None:
    """SGLang counts no request while it computes a long prompt alone."""
    first, second = page(vllm(usage=0.01)), page(vllm(usage=0.02))
    assert not state_of(first, second).empty_since(1_000)
    assert state_of(first, second, second).empty_since(1_000)


def away_after(pages: Callable[[int], bytes], seconds: int) -> bool:
    """Return True if an engine with a page for each second is away at the end."""
    state = EngineState("vllm", 0)
    for second in range(seconds + 1):
        state.answered(pages(second), second * 1_000, second * 1_000)
    return state.away


def test_an_engine_that_answers_and_makes_no_progress_is_away() -> None:
    def hung(second: int) -> bytes:
        return page(vllm(running=2, waiting=second, usage=0.3, itl=(100, 2.0)))

    limit_s = STANDSTILL_MAX_MS // 1_000
    assert not away_after(hung, limit_s - 1)
    assert away_after(hung, limit_s)


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param(lambda second: page(vllm(running=1, usage=second / 1_000)), id="a long prompt fills the cache"),
        pytest.param(
            lambda second: page(vllm(running=1, usage=0.1, itl=(second, second**1.1))), id="it generates tokens"
        ),
        pytest.param(lambda second: page(vllm(running=1, usage=0.1, finished=second)), id="it completes requests"),
        pytest.param(lambda _: page(vllm(waiting=1, usage=0.1)), id="it is idle"),
        pytest.param(lambda _: page(vllm(running=1, usage=0.0)), id="it has no cache"),
        pytest.param(
            lambda _: page({name: value for name, value in vllm(running=1).items() if "usage" not in name}),
            id="it does not tell the use of its cache",
        ),
    ],
)
def test_a_busy_or_idle_engine_is_not_away(busy: Callable[[int], bytes]) -> None:
    assert not away_after(busy, 3 * STANDSTILL_MAX_MS // 1_000)


def test_an_engine_that_makes_progress_again_has_started_again() -> None:
    state = EngineState("vllm", 0)
    for second in range(62):
        state.answered(page(vllm(running=1, usage=0.1)), second * 1_000, second * 1_000)
    assert (state.away, state.starts) == (True, 1)
    assert "no progress" in state.problem
    state.answered(page(vllm(running=1, usage=0.2)), 62_000, 62_000)
    assert (state.away, state.starts, state.problem) == (False, 2, "")
