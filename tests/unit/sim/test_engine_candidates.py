"""Candidates for migration in an engine: running and waiting requests, and unmovable ones."""

from loadline.core.migration.requests import MigratableRequest
from loadline.sim.engine import EngineKnobs, Request, SimulatedEngine
from tests.support.simulated_fleets import LINEAR


def engine(blocks: int = 1_000, batch: int = 8) -> SimulatedEngine:
    return SimulatedEngine(EngineKnobs("aggregated", blocks, max_batch_requests=batch), LINEAR)


def test_an_idle_engine_has_no_candidates() -> None:
    assert engine().migratable_requests() == []


def test_running_requests_come_first_with_their_current_tokens() -> None:
    held = engine(batch=2)
    held.submit(Request("a", 100, 500), 0.0)
    held.submit(Request("b", 50, 500, 7, prefilled=True, migrations=2), 0.0)
    held.submit(Request("c", 10, 500), 0.0)
    held.advance(1_000.0)
    a, b, c = held.migratable_requests()
    assert (a.request_id, b.request_id, c) == ("a", "b", MigratableRequest("c", 10, 0, waiting=True))
    assert (a.waiting, b.waiting, a.movable, b.hops) == (False, False, True, 2)
    assert a.output_tokens - 1 == b.output_tokens - 7 > 50  # equal iterations; "a" has one prompt token
    assert held.kv_tokens("a") == a.tokens - 1


def test_a_request_in_prefill_is_unmovable() -> None:
    held = engine()
    held.submit(Request("a", 4_000, 10), 0.0)
    held.advance(1.0)
    assert held.migratable_requests() == [MigratableRequest("a", 4_000, 0, movable=False)]
    assert held.detach("a", 1.0) is None


def test_a_detached_request_is_no_candidate() -> None:
    held = engine()
    held.submit(Request("a", 100, 500, hop=3), 0.0)
    held.advance(500.0)
    taken = held.detach("a", 500.0)
    assert taken is not None
    assert (taken.hop, taken.prefilled) == (3, True)
    assert held.migratable_requests() == []
