"""Workers of auto with a backlog that they cannot serve within TTFT: the first victims of a shrink."""

from loadline.core.vocabulary.samples import WorkerSample
from tests.support.fleet_harness import reported
from tests.unit.planning.test_auto_planner import SERVES, AutoWorld


def victims(waiting: int) -> tuple[str, ...]:
    """Return the victims of six workers, of which two report waiting requests."""
    world = AutoWorld(6)
    world.run(60.0, 60)
    backlogged = sorted(world.pool.workers)[:2]
    for name in backlogged:
        one = WorkerSample(10_000, 0, kv_usage_ratio=0.1, waiting_requests=waiting, running_requests=20)
        world.fleet.fleet.ingest(reported(name, one, pool="engine"), world.fleet.now)
    model = world.fleet.refresh()
    world.planner._sample(model, world.fleet.now + 1_000)
    found = world.planner.plan(model, world.fleet.now + 1_000).victims.get("engine", ())
    assert found in {(), tuple(backlogged)}
    return found


def test_workers_with_a_backlog_are_the_first_to_go() -> None:
    assert victims(60)


def test_requests_that_are_served_within_ttft_are_no_backlog() -> None:
    assert not victims(int(0.4 * SERVES))
