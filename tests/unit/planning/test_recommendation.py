"""Recommendations for a model, made of those for its pools."""

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.recommendation import PoolRecommendation, recommend
from loadline.core.state.explanation_log import EncodedExplanation
from loadline.core.vocabulary.reasons import Explanation
from loadline.core.vocabulary.scalars import COUNT_MAX
from tests.support.fleet_harness import FleetHarness


def test_a_count_by_a_quotient_of_almost_nothing_can_be_encoded() -> None:
    fleet = FleetHarness([PoolKnobs("decode", "decode")], 2)
    found = recommend("auto", fleet.model, {"decode": PoolRecommendation(10**30, ())}, {}, fleet.now)
    assert found.targets == {"decode": COUNT_MAX}
    explanation = Explanation("m", 1, "decided", "d", {"decode": 2}, (found,), (), {"decode": 16})
    assert EncodedExplanation.of(explanation).decode() == explanation


def test_no_lasting_workers_are_not_unknown_ones() -> None:
    fleet = FleetHarness([PoolKnobs("decode", "decode")], 1)
    found = recommend("own", fleet.model, {"decode": PoolRecommendation(1, (), 0, 0)}, {}, 0)
    assert found.lasting == {"decode": 0}
    assert not recommend("own", fleet.model, {"decode": PoolRecommendation(1, ())}, {}, 0).lasting
