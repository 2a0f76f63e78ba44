"""Migrations between demo workers: each request completes once, whichever process is killed."""

import asyncio
import itertools
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.demo.account import DemoSummary
from loadline.errors import BusUnavailable
from loadline.rig.server_processes import NatsServer
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand, DrainReply
from tests.support.demo_fleet import MODEL, TIMEOUT_S, DemoFleet
from tests.support.demo_load import Load, load_on
from tests.support.migration_leader import MigrationLeader, leader_at
from tests.waiting import until, until_async

pytestmark = pytest.mark.process

# Requests live for some seconds of real time, much longer than a handover takes on a slow machine.
SPEED = 5.0
SLOWLY = ("--speed", str(SPEED))
# The cache of a thousand tokens takes 3.2 s, virtual, which are 0.64 s here.
LINK = ("--link-gbytes-per-s", "0.05")
_numbers = itertools.count()


@asynccontextmanager
async def serving(
    fleet: DemoFleet, *, per_s: float = 2.0, unending: int = 0
) -> AsyncIterator[tuple[MigrationLeader, Load]]:
    """Run a leader, and a load on the fleet."""
    async with (
        leader_at(fleet.nats, fleet.root, 4 * TIMEOUT_S) as leader,
        load_on(fleet, SPEED, per_s=per_s, unending=unending) as load,
    ):
        yield leader, load


def assert_all_complete(summary: DemoSummary, migrated_total: int | None = None) -> None:
    """Check that each request completed once, and the number of migrated requests."""
    assert (summary.finished, summary.lost) == (summary.arrived, 0)
    if migrated_total is not None:
        assert (summary.migrated, summary.retried) == (migrated_total, 0)


def finals(leader: MigrationLeader) -> dict[str, tuple[int, int]]:
    """Return the migrated and failed requests of each ended migration."""
    return {
        report.command_id: (report.moved, report.failed)
        for report in leader.reports
        if report.phase in ("done", "aborted")
    }


async def accepted(leader: MigrationLeader, source: str, destination: str, /, **changed: Any) -> str:
    """Send commands until the source accepts one, and return its id."""
    command_id = ""

    async def asked() -> bool:
        nonlocal command_id
        command_id = f"try-{next(_numbers)}"
        with suppress(BusUnavailable):
            return (await leader.migrate(source, destination, command_id=command_id, **changed)).accepted
        return False

    await until_async(asked, "something to move")
    return command_id


def migrated_by(leader: MigrationLeader) -> int:
    """Return the number of requests migrated by all ended migrations."""
    return sum(migrated_total for migrated_total, _ in finals(leader).values())


def busy(leader: MigrationLeader, *workers: str) -> int:
    """Return the running requests of the least busy of some workers."""
    return min(leader.sample(name).running_requests or 0 if name in leader.loads else 0 for name in workers)


def test_requests_migrate_back_and_forth_and_each_completes_once(fleet: DemoFleet) -> None:
    for name in ("prefill", "a", "b"):
        fleet.worker("prefill" if name == "prefill" else "decode", name, *SLOWLY)
    a, b = f"{fleet.root}-a", f"{fleet.root}-b"

    async def scenario() -> None:
        async with serving(fleet) as (leader, load):
            for source, destination in itertools.cycle(((a, b), (b, a))):
                await until(lambda source=source: busy(leader, source), "work", deadline_s=TIMEOUT_S)  # type: ignore[misc]
                name = await accepted(leader, source, destination, hops_max=9)
                await until(lambda name=name: name in finals(leader), "over")  # type: ignore[misc]
                if migrated_by(leader) >= 24:
                    break
            assert_all_complete(await load.finish(), migrated_by(leader))

    asyncio.run(scenario())


def test_a_draining_worker_is_evacuated(fleet: DemoFleet) -> None:
    """Drain a worker whose requests do not end, so that it leaves only after all of them have migrated."""
    fleet.worker("prefill", "prefill", *SLOWLY)
    leaving = fleet.worker("decode", "a", *SLOWLY)
    fleet.worker("decode", "b", "--slots-in", "64", *SLOWLY)
    a, b = f"{fleet.root}-a", f"{fleet.root}-b"

    async def scenario() -> None:
        async with serving(fleet, unending=8) as (leader, load):
            await until(lambda: busy(leader, a, b) == 4, "all decode", deadline_s=TIMEOUT_S)
            its = leader.endpoint(a)
            drain = DrainCommand("d", MODEL, its.pool, a, "decode", its.incarnation, 1, 60_000)
            reply = await leader.bus.request(leader.subjects.drain(MODEL, its.pool, a), encode(drain), 5)
            assert msgspec.json.decode(reply, type=DrainReply).accepted
            name = await accepted(leader, a, b, trigger="drain")
            await until(lambda: a in leader.drained and name in finals(leader), "drained")
            assert finals(leader) == {name: (4, 0)}
            assert {report.trigger for report in leader.reports} == {"drain"}
            summary = await load.stop()
            assert (summary.in_flight, summary.migrated, summary.lost, summary.retried) == (8, 4, 0, 0)

    asyncio.run(scenario())
    assert leaving.wait(TIMEOUT_S) == 0, fleet.log("a")


def test_a_late_copy_is_withdrawn_and_its_request_completes_at_the_source(fleet: DemoFleet) -> None:
    fleet.worker("prefill", "prefill", *SLOWLY)
    for name in "ab":
        # 300 tokens take 10 s, virtual, which are 2 s here.
        fleet.worker("decode", name, *SLOWLY, "--link-gbytes-per-s", "0.005")
    a, b = f"{fleet.root}-a", f"{fleet.root}-b"

    async def scenario() -> None:
        async with serving(fleet) as (leader, load):
            await until(lambda: busy(leader, a), "work", deadline_s=TIMEOUT_S)
            reason = ""
            while reason != "deadline":  # a request that ends before the deadline needs no late copy
                name = await accepted(leader, a, b, order="LR", value=1.0, ttl_ms=50)
                await until(lambda name=name: name in finals(leader), "over")  # type: ignore[misc]
                reason = leader.reports[-1].reason
            await until(lambda: leader.sample(b).migration_slots_in == 4, "the destination was told")
            assert_all_complete(await load.finish(), migrated_by(leader))

    asyncio.run(scenario())


def test_no_request_is_lost_or_doubled_when_a_worker_is_killed(fleet: DemoFleet) -> None:
    """Migrate over a slow link, and kill and replace either end in each phase."""
    rng = random.Random(0)
    kills = list(itertools.product(("admitted", "copying", "switched", "done"), ("source", "destination")))
    rng.shuffle(kills)
    fleet.worker("prefill", "prefill", *SLOWLY)
    living: dict[str, subprocess.Popen[bytes]] = {}

    def start() -> None:
        name = f"d{next(_numbers)}"
        living[f"{fleet.root}-{name}"] = fleet.worker("decode", name, *SLOWLY, *LINK)

    async def migrate(leader: MigrationLeader) -> tuple[str, str, str]:
        def working() -> list[str]:
            return sorted(name for name in living if busy(leader, name))

        await until(lambda: len(working()) > 1, "two decode", deadline_s=TIMEOUT_S)
        source, destination = rng.sample(working(), 2)
        return source, destination, await accepted(leader, source, destination, hops_max=9)

    async def scenario() -> None:
        async with serving(fleet, per_s=3.0) as (leader, load):
            while not migrated_by(leader):
                _, _, name = await migrate(leader)
                await until(lambda name=name: name in finals(leader), "over")  # type: ignore[misc]
            for phase, end in kills:
                source, destination, name = await migrate(leader)
                # A failed migration does not reach every phase; then the kill happens at its end.
                await until(lambda name=name, phase=phase: {phase, "done", "aborted"} & {*leader.phases(name)}, phase)  # type: ignore[misc]
                living.pop(source if end == "source" else destination).kill()
                start()
            summary = await load.finish()
            assert_all_complete(summary)
            assert summary.migrated > 0
            assert summary.retried > 0

    for _ in range(4):
        start()
    asyncio.run(scenario())


def test_a_migration_to_a_lost_worker_fails_without_loss(fleet: DemoFleet) -> None:
    fleet.worker("prefill", "prefill", *SLOWLY)
    fleet.worker("decode", "a", *SLOWLY)
    a = f"{fleet.root}-a"

    async def scenario() -> None:
        async with serving(fleet) as (leader, load):
            await until(lambda: busy(leader, a), "work", deadline_s=TIMEOUT_S)
            name = await accepted(leader, a, "gone", destination=MigrationEndpoint("decode", "gone", 1))
            await until(lambda: "aborted" in leader.phases(name), "aborted")
            assert_all_complete(await load.finish(), 0)

    asyncio.run(scenario())


def test_no_request_is_lost_when_a_destination_hangs(fleet: DemoFleet) -> None:
    """Freeze the destination for longer than a source waits; then it reads what was handed over meanwhile."""
    fleet.worker("prefill", "prefill", *SLOWLY)
    fleet.worker("decode", "a", *SLOWLY, *LINK)
    frozen = fleet.worker("decode", "b", *SLOWLY, *LINK)
    a, b = f"{fleet.root}-a", f"{fleet.root}-b"

    async def scenario() -> None:
        async with serving(fleet) as (leader, load):
            await until(lambda: busy(leader, a) > 2 and b in leader.loads, "work", deadline_s=TIMEOUT_S)
            name = await accepted(leader, a, b, order="LR", value=4.0)
            await until(lambda: "copying" in leader.phases(name), "copying")
            frozen.send_signal(signal.SIGSTOP)
            try:
                await until(lambda: name in finals(leader), "the source knows how it ended")
            finally:
                frozen.send_signal(signal.SIGCONT)
            migrated_total, failed = finals(leader)[name]
            assert migrated_total + failed == leader.reports[-1].requests
            assert_all_complete(await load.finish())

    asyncio.run(scenario())


def test_no_request_is_lost_in_an_outage_of_nats(
    tmp_path: Path, etcd_url: str, own_name: str, private_nats: Callable[[], NatsServer]
) -> None:
    nats = private_nats()
    fleet = DemoFleet(tmp_path, nats.url, etcd_url, own_name)
    a, b = f"{own_name}-a", f"{own_name}-b"

    async def scenario() -> None:
        async with serving(fleet) as (leader, load):
            await until(lambda: busy(leader, a) > 2 and b in leader.loads, "work", deadline_s=TIMEOUT_S)
            name = await accepted(leader, a, b)
            await until(lambda: "copying" in leader.phases(name), "copying")
            nats.kill()
            await until(lambda: not leader.bus.connected, "NATS is unreachable")
            await nats.start_async()
            # Reports of that time are lost, but the last one of a migration is repeated.
            await until(lambda: leader.bus.connected, "the bus is back")
            await accepted(leader, a, b)
            assert_all_complete(await load.finish())

    try:
        fleet.worker("prefill", "prefill", *SLOWLY)
        for worker in "ab":
            fleet.worker("decode", worker, *SLOWLY, *LINK)
        asyncio.run(scenario())
    finally:
        fleet.stop()
