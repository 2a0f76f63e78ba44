"""Queues of decode workers: what requests wait for, and that their wait is no measure of a worker."""

import pytest
from msgspec.structs import replace

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.decode_queues import waits_for_prefill
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from tests.support.fleet_harness import FleetHarness, reported
from tests.unit.planning.test_decode_wait_evidence import TwoPools

SLOTS = 64
FULL = (0.97, 40, 30)
"""KV usage, waiting and running requests of a worker whose cache is full."""
SLOTS_USED = (0.3, 40, 60)
ROOM = (0.3, 40, 30)
IDLE = (0.05, 0, 4)
NO_KV = (None, 40, 30)


@pytest.mark.parametrize(
    ("loads", "has_slots", "prefill_waits", "expected"),
    [
        ([FULL, IDLE, IDLE], True, True, False),
        ([SLOTS_USED, IDLE, IDLE], True, True, False),
        ([ROOM, IDLE], True, False, True),
        ([FULL, IDLE], False, True, False),
        ([ROOM, IDLE], False, True, True),
        ([ROOM, IDLE], False, False, False),
        ([IDLE, IDLE], True, True, False),
        ([NO_KV, NO_KV], True, False, False),
    ],
)
def test_requests_wait_for_prefill_workers_where_their_own_decode_worker_has_room(
    loads: list[tuple[float | None, int, int]], *, has_slots: bool, prefill_waits: bool, expected: bool
) -> None:
    fleet = FleetHarness([PoolKnobs("p", "prefill"), PoolKnobs("d", "decode")], 0)
    fleet.add_workers("p", 1)
    fleet.add_workers("d", len(loads))
    decode = fleet.pool("d")
    for (name, worker), (kv, waiting, running) in zip(decode.workers.items(), loads, strict=True):
        worker.record = replace(worker.record, max_batch_requests=SLOTS if has_slots else None)
        one = WorkerSample(1, 0, kv_usage_ratio=kv, waiting_requests=waiting, running_requests=running)
        fleet.fleet.ingest(reported(name, one, pool="d"), fleet.now)
    for name in fleet.pool("p").workers:
        one = WorkerSample(1, 0, waiting_requests=50 if prefill_waits else 0, running_requests=1)
        fleet.fleet.ingest(reported(name, one, pool="p"), fleet.now)
    assert waits_for_prefill(fleet.refresh(), decode) is expected


class DecodePool(TwoPools):
    """The pools with a queue of full decode workers, and requests that complete with an ITL of their own."""

    def second(self, *, waiting: int, running: int, osl_tokens: float, itl_ms: float) -> None:
        """Let a second pass with a load of each decode worker, and requests that complete."""
        fleet = self.fleet
        fleet.now += 1_000
        self.sequence += 1
        for name, load in (("p", (0.0, 0, 1)), ("d", (0.95 if waiting else 0.4, waiting, running))):
            kv, queue, batch = load
            one = WorkerSample(self.sequence, 0, kv_usage_ratio=kv, waiting_requests=queue, running_requests=batch)
            for worker in fleet.pool(name).workers:
                fleet.fleet.ingest(reported(worker, one, pool=name), fleet.now)
        sample = TrafficSample(
            self.sequence, 1_000, 20, 20, isl_tokens=1_000.0, osl_tokens=osl_tokens, ttft_ms=60.0, itl_ms=itl_ms
        )
        fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), fleet.now)
        self.planner.plan(fleet.refresh(), fleet.now)

    @property
    def decode_serves(self) -> float:
        """Requests/s that a decode worker is taken to serve."""
        return self.planner._serves(self.fleet.model, self.fleet.pool("d"))


def test_the_wait_for_a_decode_worker_is_no_measure_of_one_without_a_queue() -> None:
    """The last that waited complete among shorter ones, so the mean of a second would say that they began later."""
    world = DecodePool(osl_tokens=200)
    for _ in range(120):
        world.second(waiting=0, running=40, osl_tokens=200.0, itl_ms=20.0)
    for _ in range(20):
        world.second(waiting=20, running=60, osl_tokens=200.0, itl_ms=60.0)
    full = world.decode_serves
    assert full == pytest.approx(10.0, rel=0.01)
    for _ in range(8):
        world.second(waiting=0, running=30, osl_tokens=60.0, itl_ms=110.0)
    for _ in range(3):
        world.second(waiting=0, running=30, osl_tokens=200.0, itl_ms=19.0)
    assert world.decode_serves >= full


def test_a_pool_that_is_overloaded_from_the_first_second_on_has_a_first_point() -> None:
    world = DecodePool(osl_tokens=200)
    for _ in range(60):
        world.second(waiting=30, running=60, osl_tokens=200.0, itl_ms=90.0)
    assert len(world.planner.pools["d"].evidence.itl.bins) == 1
    assert 0.0 < world.decode_serves < 10.0


@pytest.mark.parametrize("every_s", [10, 20])
def test_a_queue_of_a_second_now_and_then_hides_no_late_requests(every_s: int) -> None:
    """Requests take 12 s then, so a second of waiting is a twelfth of their ITL."""
    world = DecodePool(osl_tokens=200)
    for _ in range(120):
        world.second(waiting=0, running=40, osl_tokens=200.0, itl_ms=20.0)
    before = world.decode_serves
    for second in range(120):
        world.second(waiting=20 if second % every_s == 0 else 0, running=60, osl_tokens=200.0, itl_ms=60.0)
    assert world.decode_serves < 0.6 * before


@pytest.mark.parametrize("queued_s", [8, 20])
def test_the_batch_of_a_queue_is_none_of_the_seconds_after_it(queued_s: int) -> None:
    """Batches of 60 next to the ITL of batches of 42 would be more than the 2,000 tokens/s that a worker serves."""
    world = DecodePool(osl_tokens=200)
    for _ in range(120):
        world.second(waiting=0, running=42, osl_tokens=200.0, itl_ms=21.0)
    for _ in range(queued_s):
        world.second(waiting=40, running=60, osl_tokens=200.0, itl_ms=60.0)
    for _ in range(40):
        world.second(waiting=0, running=42, osl_tokens=200.0, itl_ms=21.0)
    curve = world.planner.pools["d"].evidence.itl
    assert max(one.rate for one in curve.bins.values()) < 2_050.0
