"""Histories of decisions, which agents with traces keep in memory."""

from loadline.core.vocabulary.events import LoadReported, TrafficReported
from loadline.core.vocabulary.samples import TrafficSample
from loadline.runtime.history import DecisionHistory
from tests.support.controller_world import booted
from tests.support.fleet_harness import sample


def test_reports_of_models_that_are_not_configured_are_not_remembered() -> None:
    history, world = DecisionHistory(), booted()
    loads = [LoadReported(f"x{number}", "decode", "w", 1, [sample(1, 0.5)]) for number in range(100)]
    traffic = [TrafficReported(f"y{number}", "front", 1, TrafficSample(1, 1_000, 5)) for number in range(100)]
    known = LoadReported("m", "decode", "d1", 1, [sample(1, 0.5)])
    history.observe(world.controller.state, [*loads, *traffic, known], [], world.now)
    assert history._reports == {"m": ("d1", world.now)}
