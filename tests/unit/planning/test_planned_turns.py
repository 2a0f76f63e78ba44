"""Turns plan a bounded number of models: changed ones before those that are due, the longest waiting first."""

from typing import ClassVar

import pytest
from msgspec import field

from loadline.core.controller import Controller
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.handlers.turn import EVENTS_PER_PLAN, PLANNED_MAX, PLANNED_MIN, WAIT_MS, Turn
from loadline.core.planning import planners
from loadline.core.planning.planner import Planner
from loadline.core.state.agent_state import initial_state
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.events import (
    AnyEvent,
    ForecastFailed,
    ForecastFitted,
    PauseChanged,
    RegistryRead,
    TrafficReported,
)
from loadline.core.vocabulary.reasons import Recommendation
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.fleet_harness import START, settings_of

NAMES = [f"m{number:02}" for number in range(2 * PLANNED_MAX + 1)]
FIRST, SECOND, LAST = NAMES[:PLANNED_MAX], NAMES[PLANNED_MAX : 2 * PLANNED_MAX], NAMES[2 * PLANNED_MAX :]
WITH_LAST = [*NAMES[PLANNED_MIN : 2 * PLANNED_MIN - len(LAST)], *LAST]
"""Models of the second turn after all are due, if ``LAST`` have changed."""
AFTER_LAST = NAMES[2 * PLANNED_MIN - len(LAST) : 3 * PLANNED_MIN - len(LAST)]
AWAY_MS = 1_000_000


class RecordingPlanner(Planner):
    """Planner that records its evaluations and forecasts."""

    asked_of: ClassVar[list[str]] = []
    answered: list[int] = field(default_factory=list)

    def plan(self, model: Model, now: int) -> Recommendation:
        del now
        self.asked_of.append(model.name)
        return Recommendation("noting", {}, (), {})

    def next_wake(self) -> int:
        return START + AWAY_MS

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        self.answered.append(answer.request)


class PlannedModels:
    """Controller that has planned each of its models."""

    def __init__(self) -> None:
        self.now, self._sequence = START, 0
        pools = (PoolKnobs("p", "decode"),)
        self.controller = Controller(settings_of(*(ModelKnobs(name, pools, planner="static") for name in NAMES)))
        self.turn(RegistryRead([]))

    def turn(self, *events: AnyEvent) -> list[str]:
        """Return the models that the next turn plans, in order."""
        self.now += 2
        RecordingPlanner.asked_of.clear()
        self.controller.handle(events, self.now)
        return list(RecordingPlanner.asked_of)

    def make_due(self) -> None:
        """Have all models due in the next turn, as planners with the same interval are."""
        for model in self.controller.state.fleet.models.values():
            model.plan_at_ms = self.now + 2

    def change(self, names: list[str]) -> list[str]:
        """Return the models that a turn plans after changes of some."""
        return self.turn(*(PauseChanged(name, paused=False, by="") for name in names))

    def report_traffic(self, names: list[str]) -> list[str]:
        """Return the models that a turn plans after reports of the frontends of some."""
        self._sequence += 1
        sample = TrafficSample(self._sequence, 1_000, 1, 1)
        return self.turn(*(TrafficReported(name, "f", 1, sample) for name in names))


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> PlannedModels:
    monkeypatch.setitem(planners.PLANNERS, "static", RecordingPlanner)
    return PlannedModels()


def test_models_beyond_the_limit_of_a_turn_are_planned_in_the_next(models: PlannedModels) -> None:
    assert models.change(NAMES[::-1]) == FIRST
    assert (models.controller.next_wake() or AWAY_MS) <= models.now, "the others are planned without further reports"
    assert [models.turn(), models.turn(), models.turn()] == [SECOND, LAST, []]
    assert {n: m.plan_at_ms for n, m in models.controller.state.fleet.models.items()} == dict.fromkeys(
        NAMES, START + AWAY_MS
    )


def test_models_that_change_often_do_not_delay_others(models: PlannedModels) -> None:
    assert models.change(NAMES) == FIRST
    assert models.change(FIRST) == SECOND
    assert models.change(FIRST + SECOND) == sorted([*LAST, *FIRST[:-1]])


def test_without_changes_a_turn_plans_few_models(models: PlannedModels) -> None:
    models.make_due()
    assert models.turn() == NAMES[:PLANNED_MIN], "what arrives now waits for this turn"
    assert models.turn() == NAMES[PLANNED_MIN : 2 * PLANNED_MIN]


def test_a_change_does_not_wait_for_the_models_that_are_due(models: PlannedModels) -> None:
    models.make_due()
    assert models.turn() == NAMES[:PLANNED_MIN]
    assert models.change(LAST) == WITH_LAST
    assert models.turn() == AFTER_LAST


def test_a_change_does_not_wait_for_reports_of_all_frontends(models: PlannedModels) -> None:
    assert models.report_traffic(NAMES) == NAMES[:PLANNED_MIN]
    assert models.change(LAST) == WITH_LAST
    assert models.turn() == AFTER_LAST


def test_a_change_does_not_wait_for_forecasts_of_all_models(models: PlannedModels) -> None:
    assert models.turn(*(ForecastFitted(name, 1, []) for name in NAMES)) == NAMES[:PLANNED_MIN]
    assert models.change(LAST) == WITH_LAST


def test_more_models_are_planned_in_a_turn_if_they_would_be_late_otherwise() -> None:
    def planned(count: int) -> int:
        turn = Turn(initial_state(settings_of(*(ModelKnobs(f"m{number}", ()) for number in range(count)))), START)
        for name, model in turn.state.fleet.models.items():
            model.plan_at_ms = START + AWAY_MS
            turn.mark_due(name)
        return len(turn.to_plan())

    assert [planned(count) for count in (2, 250, 400, 500, 5_000)] == [2, PLANNED_MIN, 6, 8, PLANNED_MAX]


def test_a_turn_of_many_events_plans_fewer_models(models: PlannedModels) -> None:
    assert models.change(LAST * 3 * EVENTS_PER_PLAN + NAMES[:-1]) == NAMES[: PLANNED_MAX - 3]
    models.turn(RegistryRead([]))
    assert models.change(LAST * 100 * EVENTS_PER_PLAN + NAMES[:-1]) == NAMES[:PLANNED_MIN], "none waits for ever"


def test_models_that_are_due_wait_a_limited_time_for_changes(models: PlannedModels) -> None:
    models.make_due()
    due_ms = models.now + 2
    assert models.change(FIRST) == FIRST
    while models.now + 2 <= due_ms + WAIT_MS:
        assert models.change(FIRST) == FIRST
    assert models.change(FIRST) == SECOND
    assert models.change(FIRST) == sorted([*LAST, *FIRST[: PLANNED_MAX - len(LAST)]])


def test_a_waiting_model_that_changes_again_is_planned_once(models: PlannedModels) -> None:
    models.change(NAMES)
    assert models.change(SECOND + LAST) == SECOND
    assert [models.turn(), models.turn()] == [LAST, []]


def test_a_change_of_all_models_has_all_planned(models: PlannedModels) -> None:
    assert models.turn(RegistryRead([])) == NAMES


def test_forecasts_wait_with_their_model(models: PlannedModels) -> None:
    models.turn(*(ForecastFitted(name, 1, []) for name in NAMES))
    models.turn(ForecastFailed(LAST[0], 2))
    other = PlannedModels()
    other.controller.restore(models.controller.snapshot())
    for one in (models, other):
        one.now = models.now
        while one.turn():
            pass
        found = one.controller._planners
        assert [planner.answered for planner in found.values() if isinstance(planner, RecordingPlanner)] == [
            *([1] for _ in FIRST + SECOND),
            [1, 2],
        ]
        assert not any(model.forecasts for model in one.controller.state.fleet.models.values())
