"""Equivalence of the fast engine and a token-by-token reference: equal events, order and times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from loadline.core.vocabulary.scalars import Role
from loadline.demo.defaults import DECODE_PROFILE, PREFILL_PROFILE
from loadline.sim.engine import EngineEvent, EngineKnobs, EngineTiming, Request, SimulatedEngine
from loadline.sim.profiles import MeasuredProfile
from tests.support.reference_engine import ReferenceEngine


class Constant(Struct):
    """Timing with binary fractions, so that sums are exact in any order."""

    def prefill_ms(self, tokens: float) -> float:
        return 4.0 + tokens * 0.125

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:
        return 8.0 + batch_requests * 0.5 + kv_tokens * 0.0


class Bent(Struct):
    """Timing that grows with cache and mean context, with a kink at half of the cache."""

    half_tokens: int

    def prefill_ms(self, tokens: float) -> float:
        return 4.0 + tokens * 0.125

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:
        over = max(kv_tokens - self.half_tokens, 0)
        return 10.0 + (kv_tokens + 2 * over) * 20.0 / self.half_tokens + kv_tokens / batch_requests / 500


class Action(Struct):
    """Action on a request after a wait in quarters of a ms."""

    kind: str
    wait: int
    isl: int
    osl: int
    other: int
    """Earlier request to abort or detach; for a new request, the cached percentage of its prompt."""


actions = st.lists(
    st.builds(
        Action,
        kind=st.sampled_from(["submit"] * 6 + ["abort", "take"]),
        wait=st.one_of(st.just(0), st.integers(0, 60), st.integers(0, 1_000)),
        isl=st.integers(1, 300),
        osl=st.integers(1, 250),
        other=st.integers(0, 100),
    ),
    min_size=10,
    max_size=30,
)
roles: st.SearchStrategy[Role] = st.sampled_from(["prefill", "decode", "aggregated"])
engines = st.builds(
    EngineKnobs,
    role=roles,
    kv_blocks_total=st.sampled_from([40, 80, 400]),
    block_size_tokens=st.sampled_from([7, 16]),
    max_batch_requests=st.sampled_from([1, 3, 8]),
    max_batched_tokens=st.sampled_from([9, 64, 500]),
    chunked_prefill=st.booleans(),
)


def run_engine(
    engine: SimulatedEngine | ReferenceEngine, role: Role, work: list[Action]
) -> tuple[list[EngineEvent], list[object]]:
    """Return the events and the results of the calls."""
    now_ms = 0.0
    answers: list[object] = []
    for number, action in enumerate(work):
        now_ms += action.wait * 0.25
        name = f"r{action.other % (number + 1)}"
        if action.kind == "submit":
            cached = action.isl * action.other // 100 * (action.other % 3 == 0)
            prefilled = role != "prefill" and (role == "decode" or action.other % 5 == 0)
            request = Request(f"r{number}", action.isl, action.osl + prefilled, int(prefilled), prefilled, cached)
            engine.submit(request, now_ms)
        elif action.kind == "abort":
            answers.append(engine.abort(name, now_ms))
        else:
            answers.append(engine.detach(name, now_ms))
    events = engine.advance(now_ms)
    while (at_ms := engine.next_event_ms()) is not None:
        events += engine.advance(at_ms)
    return events, answers


def both(knobs: EngineKnobs, timing: EngineTiming, work: list[Action]) -> tuple[list[EngineEvent], list[EngineEvent]]:
    fast, fast_answers = run_engine(SimulatedEngine(knobs, timing), knobs.role, work)
    slow, slow_answers = run_engine(ReferenceEngine(knobs, timing), knobs.role, work)
    assert fast_answers == slow_answers
    return fast, slow


@given(engines, actions)
@settings(max_examples=400, deadline=None)
def test_events_are_those_of_the_reference(knobs: EngineKnobs, work: list[Action]) -> None:
    fast, slow = both(knobs, Constant(), work)
    assert fast == slow


@given(engines, actions.map(lambda work: [action for action in work if action.kind == "submit"]))
@settings(max_examples=150, deadline=None)
def test_times_are_those_of_the_reference_where_iterations_grow(knobs: EngineKnobs, work: list[Action]) -> None:
    # All arrive at once: an arrival on the other side of the end of an iteration would change all later events.
    for action in work:
        action.wait = 0
    half_tokens = knobs.kv_blocks_total * knobs.block_size_tokens // 2
    fast, slow = both(knobs, Bent(half_tokens), work)
    assert [(e.kind, e.request_id) for e in fast] == [(e.kind, e.request_id) for e in slow]
    for one, other in zip(fast, slow, strict=True):
        # A kink within a run is cut by a straight line: at most a quarter of a 64th of the cache in one run.
        assert abs(one.at_ms - other.at_ms) <= 0.01 * other.at_ms


def test_measured_times_are_reproduced_within_a_thousandth() -> None:
    # 60 simultaneous requests: no arrival falls on the other side of the end of an iteration, so only the straight
    # lines within runs differ: 0.06 % for the worst request.
    for knobs in (
        EngineKnobs(role="aggregated", kv_blocks_total=14_008),
        EngineKnobs(role="aggregated", kv_blocks_total=14_008, max_batched_tokens=2_048, chunked_prefill=True),
        EngineKnobs(role="decode", kv_blocks_total=14_008),
    ):
        work = [Action("submit", 0, 100 + 53 * i % 4_000, 20 + 97 * i % 1_500, 1) for i in range(60)]
        fast, slow = both(knobs, MeasuredProfile(PREFILL_PROFILE, DECODE_PROFILE), work)
        assert [(e.kind, e.request_id) for e in fast] == [(e.kind, e.request_id) for e in slow]
        assert [e.at_ms for e in fast] == pytest.approx([e.at_ms for e in slow], rel=0.001)
