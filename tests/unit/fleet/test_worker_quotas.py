"""Quotas of pools: registrations of one pool never take the places of another pool or model."""

from msgspec.structs import replace

from loadline.core.fleet.fleet import Fleet, FleetKnobs, Model
from loadline.core.fleet.pool import DRAINS_MAX, Pool, PoolKnobs
from loadline.core.fleet.traffic import Traffic
from loadline.core.vocabulary.effects import RaiseAlarm
from loadline.core.vocabulary.events import RegistryRead, WorkerDeregistered, WorkerRegistered
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from tests.support.controller_world import booted
from tests.support.fleet_harness import START

QUOTA = 2 * 8 + DRAINS_MAX


def fleet_of_two(replicas_max: int = 8, *, workers_max: int = 20_000, external_drains: bool = False) -> Fleet:
    """Return a fleet of two models with a pool each."""
    return Fleet(
        FleetKnobs(workers_max=workers_max),
        {
            name: Model(
                name,
                {"decode": Pool(PoolKnobs("decode", "decode", replicas_max=replicas_max))},
                Traffic(60_000, 1, 5_000),
            )
            for name in ("honest", "attacked")
        },
        external_drains=external_drains,
    )


def worker(model: str, number: int, pool: str = "decode") -> RegisteredWorker:
    return RegisteredWorker(WorkerRecord(model, pool, f"w{number}", "decode", 1), 5)


def accepted(fleet: Fleet, model: str, count: int) -> int:
    """Register workers of a model; return the number accepted."""
    return sum(fleet.register(worker(model, number), START) is None for number in range(count))


def test_fake_workers_of_a_pool_take_no_place_of_another_model() -> None:
    fleet = fleet_of_two()
    assert accepted(fleet, "attacked", 20_000) == QUOTA
    assert fleet.register(worker("attacked", 20_000), START) is Rejection.POOL_FULL
    assert accepted(fleet, "honest", 16) == 16


def test_the_workers_known_to_a_full_pool_keep_their_places() -> None:
    fleet = fleet_of_two()
    accepted(fleet, "attacked", QUOTA + 1)
    again = RegisteredWorker(WorkerRecord("attacked", "decode", "w0", "decode", 2), 6)
    assert fleet.register(again, START) is None
    fleet.deregister("attacked", "decode", "w1", START)
    assert fleet.register(worker("attacked", QUOTA), START) is None


def test_a_rolling_replacement_of_a_whole_pool_fits_beside_draining_workers() -> None:
    fleet = fleet_of_two(replicas_max=100)
    assert accepted(fleet, "honest", 100 + 100 + DRAINS_MAX) == 264


def test_pools_whose_quotas_exceed_the_fleet_have_shares_of_it() -> None:
    fleet = fleet_of_two(replicas_max=1_000_000, workers_max=1_000)
    assert accepted(fleet, "attacked", 1_100) == 500
    assert accepted(fleet, "honest", 1_100) == 500


def test_many_small_pools_leave_a_large_one_its_replicas() -> None:
    fleet = fleet_of_two(replicas_max=1, workers_max=200)
    for name in (f"small-{number}" for number in range(50)):
        small = Pool(PoolKnobs("decode", "decode", replicas_max=1))
        fleet.models[name] = Model(name, {"decode": small}, Traffic(60_000, 1, 5_000))
    large = fleet.models["honest"].pools["decode"]
    large.knobs = replace(large.knobs, replicas_max=100)
    assert accepted(fleet, "honest", 100) == 100
    assert [accepted(fleet, name, 1) for name in fleet.models if name != "honest"] == [1] * 51
    assert sum(pool.workers_max for _, pool in fleet.pools()) <= 200


def test_what_replicas_leave_of_the_fleet_is_divided_by_the_rest_of_the_quotas() -> None:
    fleet = fleet_of_two(replicas_max=1, workers_max=200)
    large = fleet.models["honest"].pools["decode"]
    large.knobs = replace(large.knobs, replicas_max=99)
    assert (accepted(fleet, "attacked", 200), accepted(fleet, "honest", 200)) == (29, 170), "not 2 and 198"


def test_shares_are_equal_if_another_program_scales_the_pools() -> None:
    fleet = fleet_of_two(replicas_max=1, workers_max=1_000, external_drains=True)
    assert accepted(fleet, "attacked", 1_100) == 500


def test_unassigned_workers_of_one_model_leave_places_to_others() -> None:
    fleet = fleet_of_two(workers_max=10)
    for number in range(50):
        fleet.register(worker("attacked", number, pool="none"), START)
    for number in range(10):
        fleet.register(worker("honest", number, pool="removed"), START)
    models = [one.registered.record.model for one in fleet.unassigned.workers.values()]
    assert (models.count("attacked"), models.count("honest"), len(models)) == (5, 5, 10)
    assert fleet.unassigned.counts == {"attacked": 5, "honest": 5}
    assert fleet.unassigned.gpus == {"attacked": {"": 5}, "honest": {"": 5}}


def test_refused_workers_take_the_places_of_workers_that_left_in_the_order_of_registration() -> None:
    fleet = fleet_of_two()
    accepted(fleet, "attacked", QUOTA + 3)
    attacked = fleet.models["attacked"]
    fleet.admit_waiting(attacked, START)
    assert len(attacked.pools["decode"].workers) == QUOTA
    for number in (0, 1, QUOTA):
        fleet.deregister("attacked", "decode", f"w{number}", START)
    fleet.admit_waiting(attacked, START)
    workers = attacked.pools["decode"].workers
    assert [f"w{number}" in workers for number in range(QUOTA, QUOTA + 3)] == [False, True, True]
    assert (len(workers), fleet.unassigned.workers) == (QUOTA, {})


def test_a_refused_worker_that_writes_its_record_again_keeps_its_place_in_the_order() -> None:
    fleet = fleet_of_two()
    accepted(fleet, "attacked", QUOTA + 2)
    assert fleet.register(worker("attacked", QUOTA), START) is Rejection.POOL_FULL
    fleet.deregister("attacked", "decode", "w0", START)
    fleet.admit_waiting(fleet.models["attacked"], START)
    workers = fleet.models["attacked"].pools["decode"].workers
    assert (f"w{QUOTA}" in workers, f"w{QUOTA + 1}" in workers) == (True, False)


def test_a_higher_maximum_takes_refused_workers() -> None:
    fleet = fleet_of_two()
    accepted(fleet, "honest", QUOTA + 2)
    pool = fleet.models["honest"].pools["decode"]
    pool.knobs = replace(pool.knobs, replicas_max=9)
    fleet.divide_workers()
    fleet.assign_unassigned(START)
    assert (len(pool.workers), fleet.unassigned.workers) == (QUOTA + 2, {})


def test_refused_workers_occupy_no_gpus_of_budgets() -> None:
    fleet = fleet_of_two()
    accepted(fleet, "attacked", QUOTA + 3)
    assert (fleet.unassigned.counts, fleet.unassigned.gpus) == ({"attacked": 3}, {})


def test_a_full_pool_takes_a_refused_worker_at_the_next_plan_after_another_left() -> None:
    world = booted()
    workers = world.controller.state.fleet.models["m"].pools["decode"].workers
    for number in range(QUOTA):
        world.handle(WorkerRegistered(worker("m", number)))
    refused = [name for name in (f"w{number}" for number in range(QUOTA)) if name not in workers]
    world.handle(WorkerDeregistered("m", "decode", "w0"))
    world.run(10)
    assert [name for name in refused if name in workers] == refused[:1]


def test_refused_workers_are_counted_and_named_by_one_alarm() -> None:
    world = booted()
    records = [worker("m", number) for number in range(200)]
    effects = world.handle(RegistryRead(records))
    assert [e.text for e in effects if isinstance(e, RaiseAlarm) and e.kind == "worker_refused"] == [
        f"{200 - QUOTA} registered workers are not counted: pool_full"
    ]
    assert world.controller.state.rejected[Rejection.POOL_FULL] == 200 - QUOTA
    (alarm,) = [e for e in world.handle(WorkerRegistered(worker("m", 200))) if isinstance(e, RaiseAlarm)]
    assert alarm.text == "w200 of pool decode is not counted: pool_full"
