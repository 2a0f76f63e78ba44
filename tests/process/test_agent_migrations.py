"""An agent migrates the requests of a real demo fleet: drains, killed processes, and each request completes once."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.codec import encode
from loadline.wire.messages import DrainOrder, OperatorReply
from tests.support.agents import LEASE_TTL_S, assert_replays
from tests.support.demo_fleet import MODEL, TIMEOUT_S, DemoFleet
from tests.support.demo_load import load_on
from tests.support.migration_leader import MigrationLeader, leader_at
from tests.waiting import until

pytestmark = pytest.mark.process

SPEED = 5.0
SLOWLY = ("--speed", str(SPEED))
ROOT = "loadline"
MODELS = f"""
[[models]]
name = "{MODEL}"
planner = "static"
[models.guardrails]
warm_up_ms = 500
[models.migration]
enabled = true
decode_load_metric = "num_requests"
decode_load_threshold = 0.0
load_balance_threshold = 2.0
req_select_rule = "NUM_REQ"
req_select_value = 1
[[models.pools]]
name = "prefill"
role = "prefill"
replicas_min = 1
replicas_max = 4
[[models.pools]]
name = "decode"
role = "decode"
replicas_min = 1
replicas_max = 8
"""


@pytest.fixture
def fleet(rig: Rig) -> Iterator[DemoFleet]:
    new_fleet = DemoFleet(rig.directory, rig.nats.url, rig.etcd.url, ROOT)
    yield new_fleet
    new_fleet.stop()


def start(rig: Rig, name: str) -> ChildAgent:
    text = rig.config(
        MODELS,
        name,
        agent={"root": ROOT, "namespace": ROOT},
        leadership={"lease_ttl_s": LEASE_TTL_S, "margin_ms": 1_000},
        fleet={"stale_after_ms": 1_500},
    )
    agent = rig.agent(text, name)
    agent.wait_ready()
    return agent


def busy(leader: MigrationLeader, *names: str) -> bool:
    """Return whether these workers have requests."""
    workers = [f"{ROOT}-{name}" for name in names]
    return all(name in leader.loads and leader.sample(name).running_requests for name in workers)


def migrated_by(leader: MigrationLeader, trigger: str) -> int:
    """Return the requests migrated by ended migrations of a trigger."""
    ends = {report.command_id: report for report in leader.reports if report.phase == "done"}
    return sum(report.moved for report in ends.values() if report.trigger == trigger)


async def drain(leader: MigrationLeader, worker: str) -> None:
    order = DrainOrder(MODEL, "decode", f"{ROOT}-{worker}", "a test")
    reply = await leader.bus.request(f"{ROOT}.v1.api.drain", encode(order), 5)
    assert msgspec.json.decode(reply, type=OperatorReply).accepted


def test_a_draining_worker_is_evacuated_and_the_journal_replays(rig: Rig, fleet: DemoFleet) -> None:
    """Drain a worker whose requests do not end, so that it leaves only after all of them have migrated."""
    agent = start(rig, "a")
    fleet.worker("prefill", "prefill", *SLOWLY)
    leaving = fleet.worker("decode", "d0", *SLOWLY)
    for number in (1, 2):
        fleet.worker("decode", f"d{number}", *SLOWLY)

    async def scenario() -> None:
        async with leader_at(rig.nats.url, ROOT, 2 * TIMEOUT_S) as leader, load_on(fleet, SPEED, unending=9) as load:
            await until(lambda: busy(leader, "d0", "d1", "d2"), "all decode", deadline_s=TIMEOUT_S)
            await drain(leader, "d0")
            await until(lambda: f"{ROOT}-d0" in leader.drained, "drained")
            await until(lambda: migrated_by(leader, "drain"), "the migrations are reported")
            summary = await load.stop()
            assert (summary.in_flight, summary.lost, summary.retried) == (9, 0, 0)
            assert summary.migrated >= migrated_by(leader, "drain")

    asyncio.run(scenario())
    assert leaving.wait(TIMEOUT_S) == 0, fleet.log("d0")
    assert agent.stop() == 0
    assert_replays(rig, "a")


def test_each_request_completes_once_when_leader_source_or_destination_is_killed(rig: Rig, fleet: DemoFleet) -> None:
    first = start(rig, "a")
    first.wait_leading()
    second = start(rig, "b")
    fleet.worker("prefill", "prefill", *SLOWLY)
    living = {f"d{number}": fleet.worker("decode", f"d{number}", *SLOWLY) for number in range(4)}

    async def scenario() -> None:
        async with leader_at(rig.nats.url, ROOT, 4 * TIMEOUT_S) as leader, load_on(fleet, SPEED, per_s=4.0) as load:
            await until(lambda: busy(leader, *living), "all decode", deadline_s=TIMEOUT_S)
            await until(lambda: migrated_by(leader, "decode_load") > 3, "moves by load")
            for victim in ("d0", "d1"):
                seen = len(leader.reports)
                await until(lambda: len(leader.reports) > seen, "a move")  # noqa: B023 - at once
                living.pop(victim).kill()
            first.kill()
            before = migrated_by(leader, "decode_load")
            living["d4"] = fleet.worker("decode", "d4", *SLOWLY)
            await until(
                lambda: migrated_by(leader, "decode_load") > before, "the other agent moves", deadline_s=TIMEOUT_S
            )
            summary = await load.finish()
            assert (summary.finished, summary.lost) == (summary.arrived, 0)
            assert summary.migrated > 0

    asyncio.run(scenario())
    assert second.stop() == 0
    for name in ("a", "b"):
        assert_replays(rig, name)
