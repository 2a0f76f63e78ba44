"""Limits of a shrink."""

from loadline.core.planning.sizing.needs.pool_needs import PoolNeeds
from loadline.core.planning.sizing.needs.shrink_hold import ShrinkHold
from loadline.core.planning.sizing.needs.shrink_limits import shrink
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from tests.unit.planning.test_auto_planner import AutoWorld


def test_a_pool_shrinks_to_no_worker_where_others_have_its_role() -> None:
    """Workers that cannot meet the objectives serve nothing, so no load of theirs is needed or unproven."""
    world = AutoWorld(2)
    world.run(20.0, 240)
    load = world.planner._load(world.fleet.model, world.pool, world.fleet.now)
    load.state.hold = ShrinkHold()
    reason = Reason.of(ReasonCode.DEMAND_TARGET, "engine", requests_per_s=20.0, serves=0.0, needed=0.0)
    found = shrink(load, PoolNeeds(0, 0, 0.0, 20.0, 20.0, reason), reason)
    assert (found.replicas, found.reasons) == (0, (reason,))


def test_requests_that_are_short_for_seconds_prove_no_higher_rate() -> None:
    """Two workers with 10 requests/s each have proven 10 requests/s of the lengths that are provided for."""
    world = AutoWorld(2)
    world.run(20.0, 240)
    load = world.planner._load(world.fleet.model, world.pool, world.fleet.now)
    load.state.hold = ShrinkHold()
    load.lengths.isl_tokens, load.lengths.osl_tokens = 0.5 * load.lengths.isl_tokens, 0.5 * load.lengths.osl_tokens
    reason = Reason.of(ReasonCode.DEMAND_TARGET, "engine", requests_per_s=20.0, serves=22.0, needed=0.9)
    found = shrink(load, PoolNeeds(1, 1, 0.9, 20.0, 20.0, reason), reason)
    assert found.replicas is None
    assert [one.code for one in found.reasons] == [ReasonCode.DEMAND_TARGET, ReasonCode.UNPROVEN_LOAD]
