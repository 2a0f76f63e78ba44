"""Simulated engine: exact times, limits, and independence of the steps in which time advances."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from loadline.core.vocabulary.scalars import Role
from loadline.sim.engine import EngineEvent, EngineKnobs, Request, SimulatedEngine


class Steady(Struct):
    """Simple timing: 0.1 ms per prompt token; 10 ms per iteration plus 1 ms per 1,000 tokens."""

    prefill_ms_per_token: float = 0.1

    def prefill_ms(self, tokens: float) -> float:
        return tokens * self.prefill_ms_per_token

    def itl_ms(self, batch_requests: int, kv_tokens: float) -> float:
        return 10.0 + kv_tokens / 1_000 + batch_requests * 0.0


SMALL = EngineKnobs(role="aggregated", kv_blocks_total=40, block_size_tokens=16, max_batch_requests=8)


def prompts(role: Role, sizes: list[tuple[int, int]]) -> list[Request]:
    cached = role == "decode"
    return [
        Request(f"r{i}", isl, osl + cached, generated_tokens=int(cached), prefilled=cached)
        for i, (isl, osl) in enumerate(sizes)
    ]


def drain(engine: SimulatedEngine) -> list[EngineEvent]:
    events = engine.advance(0.0)
    while (at_ms := engine.next_event_ms()) is not None:
        events += engine.advance(at_ms)
        sample = engine.load()
        assert sample.kv_blocks_used is not None
        assert sample.kv_blocks_used <= engine.knobs.kv_blocks_total
    return events


sizes = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 250)), min_size=1, max_size=25)
gaps = st.lists(st.floats(0, 400), min_size=25, max_size=25)
ROLES: tuple[Role, ...] = ("prefill", "decode", "aggregated")
WHOLE = [structs.replace(SMALL, role=role) for role in ROLES]
CHUNKED = [structs.replace(knobs, chunked_prefill=True, max_batched_tokens=100) for knobs in WHOLE]
kinds = st.sampled_from(WHOLE + CHUNKED)


@given(sizes, gaps, kinds)
@settings(max_examples=150, deadline=None)
def test_every_request_ends_exactly_once(work: list[tuple[int, int]], waits: list[float], knobs: EngineKnobs) -> None:
    engine = SimulatedEngine(knobs, Steady())
    now_ms = 0.0
    requests = prompts(knobs.role, work)
    for request, wait in zip(requests, waits, strict=False):
        now_ms += wait
        engine.submit(request, now_ms)
    events = drain(engine)
    last = "first_token" if knobs.role == "prefill" else "finished"
    ended = [event.request_id for event in events if event.kind in (last, "refused")]
    assert sorted(ended) == sorted(request.request_id for request in requests)
    assert engine.held == []
    assert all(earlier.at_ms <= later.at_ms for earlier, later in pairwise(events))
    assert engine.load().kv_blocks_used == 0


@given(sizes, gaps, kinds, st.lists(st.floats(0.1, 50), min_size=1, max_size=7))
@settings(max_examples=150, deadline=None)
def test_one_large_step_equals_many_small_ones(
    work: list[tuple[int, int]], waits: list[float], knobs: EngineKnobs, steps: list[float]
) -> None:
    big, small = (SimulatedEngine(knobs, Steady()) for _ in range(2))
    seen: list[EngineEvent] = []
    now_ms = 0.0
    for turn, (request, wait) in enumerate(zip(prompts(knobs.role, work), waits, strict=False)):
        until_ms = now_ms + wait
        while now_ms < until_ms:
            now_ms = min(now_ms + steps[turn % len(steps)], until_ms)
            seen += small.advance(now_ms)
            small.load()
        big.submit(request, now_ms)
        small.submit(request, now_ms)
    assert seen + drain(small) == drain(big)


def test_same_input_gives_same_output() -> None:
    def run() -> list[EngineEvent]:
        rng = random.Random(7)
        engine = SimulatedEngine(SMALL, Steady())
        for i in range(200):
            engine.submit(Request(f"r{i}", rng.randint(1, 200), rng.randint(1, 200)), i * 50.0)
        return drain(engine)

    assert run() == run()


def test_decode_times_are_exact() -> None:
    engine = SimulatedEngine(EngineKnobs(role="decode", kv_blocks_total=10_000), Steady())
    engine.submit(Request("a", 999, 11, generated_tokens=1, prefilled=True), 100.0)
    # 999 tokens in the cache, one more with each iteration: 10.999 ms, 11.000 ms, 11.001 ms. "b" comes in the third.
    engine.submit(Request("b", 1_000, 5, generated_tokens=1, prefilled=True), 125.0)
    joined_ms = 100.0 + 10.999 + 11.0 + 11.001
    b_ends_ms = joined_ms + sum(10.0 + (1_002 + 1_000 + 2 * i) / 1_000 for i in range(4))
    a_ends_ms = b_ends_ms + sum(10.0 + (1_006 + i) / 1_000 for i in range(3))
    events = drain(engine)
    assert [(event.kind, event.request_id) for event in events] == [("finished", "b"), ("finished", "a")]
    assert [event.at_ms for event in events] == pytest.approx([b_ends_ms, a_ends_ms])


def test_prefill_passes_are_batched_up_to_the_token_limit() -> None:
    engine = SimulatedEngine(EngineKnobs(role="prefill", kv_blocks_total=1_000, max_batched_tokens=1_000), Steady())
    for name, isl in (("a", 100), ("b", 600), ("c", 400), ("d", 100), ("e", 5_000)):
        engine.submit(Request(name, isl, 10), 0.0)
    # a is alone, since the engine was idle; b and c fill a pass; e exceeds the limit, so it is not batched with d.
    ends = {event.request_id: event.at_ms for event in drain(engine)}
    assert ends == pytest.approx({"a": 10.0, "b": 110.0, "c": 110.0, "d": 120.0, "e": 620.0})


def ends(knobs: EngineKnobs, *requests: tuple[Request, float]) -> dict[tuple[str, str], float]:
    engine = SimulatedEngine(knobs, Steady(1.0))
    for request, at_ms in requests:
        engine.submit(request, at_ms)
    return {(event.kind, event.request_id): event.at_ms for event in drain(engine)}


def test_prefill_delays_decode_when_they_share_an_engine() -> None:
    knobs = EngineKnobs(role="aggregated", kv_blocks_total=10_000)
    decoding, prompt = Request("a", 100, 50), Request("b", 2_000, 1)
    single, disturbed = ends(knobs, (decoding, 0.0)), ends(knobs, (decoding, 0.0), (prompt, 200.0))
    assert disturbed["finished", "a"] - single["finished", "a"] == pytest.approx(2_000.0)


def test_chunked_prefill_continues_the_batch_and_computes_all_tokens() -> None:
    knobs = EngineKnobs(
        role="aggregated",
        kv_blocks_total=10_000,
        max_batch_requests=8,
        max_batched_tokens=101,
        chunked_prefill=True,
    )
    decoding, prompt = Request("a", 100, 50), Request("b", 2_000, 1)
    # a: 100 ms of prefill, then iterations of 10.1 ms and more: at 200 ms the tenth is running and ends at 201.45 ms.
    # b: 20 iterations, each with 100 tokens of b and one of a.
    began_ms = 100.0 + sum(10.1 + i / 1_000 for i in range(10))
    mixed_ms = sum(10.11 + i / 1_000 + 100.0 for i in range(20))
    both = ends(knobs, (decoding, 0.0), (prompt, 200.0))
    assert both["first_token", "b"] == pytest.approx(began_ms + mixed_ms)
    single = ends(knobs, (decoding, 0.0))
    assert both["finished", "a"] - single["finished", "a"] == pytest.approx(2_000.0)


def test_cached_tokens_take_blocks_but_no_time() -> None:
    knobs = EngineKnobs(role="prefill", kv_blocks_total=100)
    assert ends(knobs, (Request("a", 1_000, 10, cached_tokens=600), 0.0))["first_token", "a"] == pytest.approx(400.0)
    assert ends(knobs, (Request("a", 1_000, 10, cached_tokens=1_000), 0.0))["first_token", "a"] == pytest.approx(1.0)
    engine = SimulatedEngine(knobs, Steady())
    engine.submit(Request("a", 1_000, 10, cached_tokens=600), 0.0)
    sample = engine.load()
    assert (sample.kv_blocks_used, sample.active_prefill_tokens) == (63, 400)


@pytest.mark.parametrize(("blocks", "waits"), [(38, 0), (39, 1)])
def test_admission_leaves_a_hundredth_of_the_cache_free(blocks: int, waits: int) -> None:
    engine = SimulatedEngine(EngineKnobs(role="decode", kv_blocks_total=100), Steady())
    engine.submit(Request("a", 60 * 16, 100, generated_tokens=1, prefilled=True), 0.0)
    engine.submit(Request("b", blocks * 16, 100, generated_tokens=1, prefilled=True), 0.0)
    assert (
        engine.advance(11.0) == []
    )  # one iteration, after which a has 61 blocks; no request is admitted and preempted
    assert engine.load().waiting_requests == waits


def test_preempted_requests_finish() -> None:
    engine = SimulatedEngine(structs.replace(SMALL, kv_blocks_total=20), Steady())
    for name in ("a", "b", "c"):
        engine.submit(Request(name, 60, 100), 0.0)  # 12 of 20 blocks at first, 30 in the end
    events = drain(engine)
    assert next(event.request_id for event in events if event.kind == "preempted") == "c"
    assert [event.request_id for event in events if event.kind == "first_token"] == ["a", "b", "c"]
    assert sorted(event.request_id for event in events if event.kind == "finished") == ["a", "b", "c"]


def test_requests_that_can_never_fit_are_refused() -> None:
    engine = SimulatedEngine(structs.replace(SMALL, kv_blocks_total=10), Steady())
    engine.submit(Request("fits", 100, 61), 5.0)
    engine.submit(Request("too long", 100, 62), 5.0)
    events = drain(engine)
    assert ("refused", "too long", 5.0) in [(e.kind, e.request_id, e.at_ms) for e in events]
    assert ("finished", "fits") in [(e.kind, e.request_id) for e in events]


def test_an_aborted_request_emits_no_events() -> None:
    engine = SimulatedEngine(structs.replace(SMALL, max_batch_requests=1), Steady())
    for name in ("runs", "waits", "last"):
        engine.submit(Request(name, 50, 50), 0.0)
    assert engine.abort("waits", 20.0)
    assert engine.abort("runs", 40.0)
    assert not engine.abort("waits", 40.0)
    assert [e.request_id for e in drain(engine) if e.kind == "finished"] == ["last"]


def test_a_running_request_migrates_with_its_cache_and_loses_no_token() -> None:
    knobs = EngineKnobs(role="decode", kv_blocks_total=1_000)
    source, destination = SimulatedEngine(knobs, Steady()), SimulatedEngine(knobs, Steady())
    source.submit(Request("a", 999, 31, generated_tokens=1, prefilled=True), 0.0)
    source.advance(25.0)  # in the third iteration
    assert source.kv_tokens("a") == 1_001
    migrated = source.detach("a", 25.0)
    assert migrated == Request("a", 999, 31, generated_tokens=4, prefilled=True)
    assert migrated.kv_tokens == 1_002
    assert (source.detach("a", 25.0), source.abort("a", 25.0)) == (None, False)
    assert source.held == ["a"]  # until the end of the iteration
    (left,) = drain(source)
    assert left.kind == "detached"
    assert left.at_ms == pytest.approx(3 * 11.0)
    assert (source.load().kv_blocks_used, source.kv_tokens("a"), source.held) == (0, 0, [])
    destination.submit(migrated, left.at_ms)
    (done,) = drain(destination)
    assert done.kind == "finished"
    # No iteration is lost: the request ends as if it had not migrated.
    assert done.at_ms == pytest.approx(sum(10.0 + (999 + i) / 1_000 for i in range(30)))


def test_a_waiting_request_migrates_at_once_and_one_in_prefill_stays() -> None:
    engine = SimulatedEngine(structs.replace(SMALL, max_batch_requests=1), Steady())
    for name in ("computed", "waits"):
        engine.submit(Request(name, 100, 1), 0.0)
    assert engine.detach("computed", 5.0) is None
    assert (engine.kv_tokens("computed"), engine.kv_tokens("waits")) == (0, 0)
    assert engine.detach("waits", 5.0) == Request("waits", 100, 1)
    assert [(e.kind, e.request_id, e.at_ms) for e in drain(engine)] == [
        ("detached", "waits", 5.0),
        ("first_token", "computed", 10.0),
        ("finished", "computed", 10.0),
    ]


def test_a_request_that_finishes_with_the_current_iteration_is_not_detached() -> None:
    engine = SimulatedEngine(SMALL, Steady())
    engine.submit(Request("a", 100, 3), 0.0)
    assert engine.detach("a", 10.0 + 10.1 + 5.0) is None
    assert [e.kind for e in drain(engine)] == ["first_token", "finished"]


def test_invalid_requests_are_refused() -> None:
    engine = SimulatedEngine(SMALL, Steady())
    engine.submit(Request("a", 10, 10), 0.0)
    for bad in (
        Request("a", 10, 10),
        Request("b", 0, 10),
        Request("c", 10, 0),
        Request("d", 10, 5, prefilled=True),
        Request("e", 10, 5, cached_tokens=11),
    ):
        with pytest.raises(ValueError, match="request"):
            engine.submit(bad, 0.0)
    with pytest.raises(ValueError, match="needs a decode engine"):
        SimulatedEngine(structs.replace(SMALL, role="prefill"), Steady()).submit(
            Request("f", 10, 5, 1, prefilled=True), 0.0
        )


def test_invalid_knobs_are_refused() -> None:
    with pytest.raises(ValueError, match="max_batch_requests is 0"):
        EngineKnobs(role="decode", kv_blocks_total=1, max_batch_requests=0)
    with pytest.raises(ValueError, match="leaves no token for prompts"):
        EngineKnobs(role="aggregated", kv_blocks_total=1, max_batched_tokens=128, chunked_prefill=True)


def test_the_load_counts_all_requests() -> None:
    engine = SimulatedEngine(EngineKnobs(role="aggregated", kv_blocks_total=100, max_batch_requests=1), Steady())
    idle = engine.load()
    assert (idle.kv_blocks_used, idle.waiting_requests, idle.running_requests, idle.decode_tokens) == (0, 0, 0, 0)
    engine.submit(Request("a", 160, 100), 0.0)
    engine.submit(Request("b", 40, 100), 0.0)
    engine.advance(1.0)
    prefilling = engine.load()
    assert (prefilling.active_prefill_tokens, prefilling.queued_prefill_tokens) == (160, 40)
    assert (prefilling.waiting_requests, prefilling.running_requests, prefilling.kv_blocks_used) == (1, 1, 10)
    engine.advance(16.0 + 3.5 * 10.16)  # in the fourth iteration
    decoding = engine.load()
    assert (decoding.decode_tokens, decoding.decode_batch_requests, decoding.kv_blocks_used) == (163, 1, 11)
    assert (decoding.ttft_ms, decoding.itl_ms) == pytest.approx((16.0, 10.163))
