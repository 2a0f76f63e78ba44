"""Histories of decisions, which agents with traces keep in memory."""

from msgspec.structs import replace

from loadline.core.vocabulary.events import (
    AnyEvent,
    DecisionAnswered,
    DecisionCommitted,
    LoadReported,
    TrafficReported,
)
from loadline.core.vocabulary.samples import TrafficSample
from loadline.runtime.history import DecisionHistory
from tests.support.controller_harness import leading
from tests.support.controller_world import booted
from tests.support.fleet_harness import sample


def test_the_newest_reporter_of_each_configured_model_is_remembered() -> None:
    history, world = DecisionHistory(), booted()
    loads = [LoadReported(name, "decode", "d1", 1, [sample(1, 0.5)]) for name in ("m", *map(str, range(100)))]
    traffic = [TrafficReported(one.model, "front", 1, TrafficSample(1, 1_000, 5)) for one in loads]
    history.observe(world.controller.state, loads, [], world.now)
    assert history._reports == {"m": ("d1", world.now)}
    history.observe(world.controller.state, traffic, [], world.now + 1)
    assert history._reports == {"m": ("front", world.now + 1)}


def test_a_refused_decision_ends_with_what_its_scaler_said() -> None:
    history, harness = DecisionHistory(), leading()
    harness.kv["m"] = 1.0
    effects = harness.advance(31)
    decision = harness.commit_of(effects)
    assert history.observe(harness.controller.state, [], effects, harness.now) == []
    committed = DecisionCommitted(decision.decision_id, "m", 90)
    accepted = DecisionAnswered(
        decision.decision_id, "m", decision.epoch, decision.sequence, "s", "accepted", {}, "in hand"
    )
    refused = replace(accepted, status="refused", detail="no GPUs")
    ended, began_ms = [], harness.now
    events: tuple[AnyEvent, ...] = (committed, accepted, refused)
    for event in events:
        harness.now += 10
        effects = harness.handle(event)
        ended += history.observe(harness.controller.state, [event], effects, harness.now)
    (record,) = ended
    assert (record.outcome, record.scaler, record.detail) == ("refused", "s", "no GPUs")
    assert (record.committed_at_ms, record.announced_at_ms) == (began_ms + 10, began_ms + 10)
    assert (record.accepted_at_ms, record.ended_at_ms) == (began_ms + 20, began_ms + 30)
    assert history.open == {}
