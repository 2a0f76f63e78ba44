"""Migrations between demo workers: each request completes once, whichever process is killed."""

import asyncio
import itertools
import random
import signal
import subprocess
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.errors import BusUnavailable
from loadline.rig.servers import NatsServer
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand, DrainReply
from tests.support.demo_fleet import MODEL, PATIENCE_S, DemoFleet, account, begun
from tests.support.migration_leader import MigrationLeader, leader_at
from tests.waiting import until, until_async

pytestmark = pytest.mark.process

# The cache of a thousand tokens takes 0.8 s, virtual, which are 0.16 s here; a request lives for some seconds.
SLOWLY = ("--speed", "5")
LINK = (*SLOWLY, "--link-gbytes-per-s", "0.2")
_numbers = itertools.count()
Act = Callable[[MigrationLeader], Coroutine[Any, Any, None]]


def played(fleet: DemoFleet, gateway: "subprocess.Popen[bytes]", act: Act) -> dict[str, Any]:
    """Let a leader act and return the summary of the gateway."""

    async def scenario() -> None:
        async with leader_at(fleet.nats, fleet.root, 2 * PATIENCE_S) as leader:
            await until(lambda: begun(fleet), "the replay begins", deadline_s=PATIENCE_S)
            await act(leader)

    asyncio.run(scenario())
    return account(fleet, gateway)


def finals(leader: MigrationLeader) -> dict[str, tuple[int, int]]:
    """Return the moved and failed requests of each ended migration."""
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


def busy(leader: MigrationLeader, worker: str) -> int:
    return leader.sample(worker).running_requests or 0 if worker in leader.loads else 0


def test_requests_migrate_to_and_fro_and_each_completes_once(fleet: DemoFleet) -> None:
    for name in ("prefill", "a", "b"):
        fleet.worker("prefill" if name == "prefill" else "decode", name)
    gateway = fleet.gateway("--load", "2", "--requests-max", "500")
    a, b = f"{fleet.root}-a", f"{fleet.root}-b"
    moved = 0

    async def act(leader: MigrationLeader) -> None:
        nonlocal moved
        await until(lambda: busy(leader, a) and busy(leader, b), "both decode")
        for number in range(12):
            source, destination = (a, b) if number % 2 else (b, a)
            command_id = f"c{number}"
            if (await leader.migrate(source, destination, command_id=command_id, hops_max=9)).accepted:
                await until(lambda name=command_id: name in finals(leader), "over")  # type: ignore[misc]
        moved = sum(one for one, _ in finals(leader).values())

    summary = played(fleet, gateway, act)
    assert (summary["finished"], summary["lost"], summary["retried"]) == (500, 0, 0)
    assert summary["migrated"] == moved > 0


def test_a_draining_worker_is_evacuated(fleet: DemoFleet) -> None:
    fleet.worker("prefill", "prefill")
    leaving, _ = fleet.worker("decode", "a"), fleet.worker("decode", "b", "--slots-in", "64")
    gateway = fleet.gateway("--load", "2", "--requests-max", "500")
    a, b = f"{fleet.root}-a", f"{fleet.root}-b"

    async def act(leader: MigrationLeader) -> None:
        await until(lambda: busy(leader, a) > 2 and b in leader.loads, "work")
        its = leader.endpoint(a)
        drain = DrainCommand("d", MODEL, its.pool, a, "decode", its.incarnation, 1, 60_000)
        reply = await leader.bus.request(leader.subjects.drain(a), encode(drain), 5)
        assert msgspec.json.decode(reply, type=DrainReply).accepted
        await accepted(leader, a, b, trigger="drain")
        await until(lambda: a in leader.drained, "drained")
        assert [report.trigger for report in leader.reports[-1:]] == ["drain"]

    summary = played(fleet, gateway, act)
    assert leaving.wait(PATIENCE_S) == 0, fleet.log("a")
    assert (summary["finished"], summary["lost"], summary["retried"]) == (500, 0, 0)
    assert summary["migrated"] > 0


def test_a_late_copy_is_withdrawn_and_its_request_completes_at_the_source(fleet: DemoFleet) -> None:
    fleet.worker("prefill", "prefill", *SLOWLY)
    for name in "ab":
        # 300 tokens take 10 s, virtual, which are 2 s here.
        fleet.worker("decode", name, *SLOWLY, "--link-gbytes-per-s", "0.005")
    gateway = fleet.gateway("--load", "3", *SLOWLY)
    a, b = f"{fleet.root}-a", f"{fleet.root}-b"
    moved = 0

    async def act(leader: MigrationLeader) -> None:
        nonlocal moved
        await until(lambda: busy(leader, a), "work")
        reason = ""
        while reason != "deadline":  # one that finishes first is none, nor a short one: it is copied at a standstill
            name = await accepted(leader, a, b, order="LR", value=1.0, ttl_ms=50)
            await until(lambda name=name: name in finals(leader), "over")  # type: ignore[misc]
            reason = leader.reports[-1].reason
        await until(lambda: leader.sample(b).migration_slots_in == 4, "the destination was told")
        moved = sum(one for one, _ in finals(leader).values())

    summary = played(fleet, gateway, act)
    assert (summary["lost"], summary["retried"], summary["migrated"]) == (0, 0, moved)


@pytest.mark.parametrize("seed", range(2))
def test_no_request_is_lost_or_doubled_when_a_worker_is_killed(fleet: DemoFleet, seed: int) -> None:
    """Migrate at random over a slow link, and kill and replace one end once in a while."""
    rng = random.Random(seed)
    fleet.worker("prefill", "prefill", *SLOWLY)
    living = {f"{fleet.root}-d{number}": fleet.worker("decode", f"d{number}", *LINK) for number in range(3)}
    requests, kills = 900, 4
    gateway = fleet.gateway("--load", "3", "--requests-max", str(requests), *SLOWLY)

    async def kill(leader: MigrationLeader, victim: str, number: int) -> None:
        living.pop(victim).kill()
        leader.loads.pop(victim, None)
        living[f"{fleet.root}-d{number}"] = fleet.worker("decode", f"d{number}", *LINK)

    async def act(leader: MigrationLeader) -> None:
        await until(lambda: all(busy(leader, name) for name in living), "all decode")
        while not any(moved for moved, _ in finals(leader).values()):
            source, destination = rng.sample(sorted(living), 2)
            name = await accepted(leader, source, destination)
            await until(lambda name=name: name in finals(leader), "over")  # type: ignore[misc]
        for number in range(kills):
            await until(lambda: all(busy(leader, name) for name in living), "all decode")
            for turn in range(3):
                source, destination = rng.sample(sorted(living), 2)
                await leader.migrate(source, destination, command_id=f"c{number}-{turn}", hops_max=9)
            phase = rng.choice(("admitted", "copying", "switched", "done"))
            seen = len(leader.reports)
            with suppress(TimeoutError):  # that it does not come is as good a moment
                await until(lambda: phase in _phases(leader, seen), phase, deadline_s=1.0)  # noqa: B023 - at once
            await kill(leader, rng.choice((source, destination)), 3 + number)

    summary = played(fleet, gateway, act)
    assert (summary["arrived"], summary["finished"], summary["lost"]) == (requests, requests, 0)
    assert summary["migrated"] > 0
    assert summary["retried"] > 0


def _phases(leader: MigrationLeader, seen: int) -> set[str]:
    return {report.phase for report in leader.reports[seen:]}


def test_a_migration_to_a_lost_worker_fails_without_loss(fleet: DemoFleet) -> None:
    fleet.worker("prefill", "prefill")
    fleet.worker("decode", "a")
    gateway = fleet.gateway("--load", "3")
    a = f"{fleet.root}-a"

    async def act(leader: MigrationLeader) -> None:
        await until(lambda: busy(leader, a), "work")
        name = await accepted(leader, a, "gone", destination=MigrationEndpoint("decode", "gone", 1))
        await until(lambda: "aborted" in leader.phases(name), "aborted")

    summary = played(fleet, gateway, act)
    assert (summary["lost"], summary["retried"], summary["migrated"]) == (0, 0, 0)


def test_no_request_is_lost_when_a_destination_hangs(fleet: DemoFleet) -> None:
    """Freeze the destination for longer than a source waits; then it reads what was handed over meanwhile."""
    fleet.worker("prefill", "prefill", *SLOWLY)
    fleet.worker("decode", "a", *LINK)
    frozen = fleet.worker("decode", "b", *LINK)
    gateway = fleet.gateway("--load", "2", "--requests-max", "400", *SLOWLY)
    a, b = f"{fleet.root}-a", f"{fleet.root}-b"

    async def act(leader: MigrationLeader) -> None:
        await until(lambda: busy(leader, a) > 2 and b in leader.loads, "work")
        name = await accepted(leader, a, b, order="LR", value=4.0)
        await until(lambda: "copying" in leader.phases(name), "copying")
        frozen.send_signal(signal.SIGSTOP)
        try:
            await until(lambda: name in finals(leader), "the source knows how it ended")
        finally:
            frozen.send_signal(signal.SIGCONT)
        moved, failed = finals(leader)[name]
        assert moved + failed == leader.reports[-1].requests

    summary = played(fleet, gateway, act)
    assert (summary["arrived"], summary["finished"], summary["lost"]) == (400, 400, 0)


def test_no_request_is_lost_when_the_bus_goes_away(
    tmp_path: Path, etcd_url: str, own_name: str, private_nats: Callable[[], NatsServer]
) -> None:
    nats = private_nats()
    fleet = DemoFleet(tmp_path, nats.url, etcd_url, own_name)
    a, b = f"{own_name}-a", f"{own_name}-b"

    async def act(leader: MigrationLeader) -> None:
        await until(lambda: busy(leader, a) > 2 and b in leader.loads, "work")
        name = await accepted(leader, a, b)
        await until(lambda: "copying" in leader.phases(name), "copying")
        nats.kill()
        await until(lambda: not leader.bus.connected, "the bus is away")
        await nats.start_async()
        # Some of it was said while nobody could hear it, but the last word is said again.
        await until(lambda: leader.bus.connected, "the bus is back")
        await accepted(leader, a, b)

    try:
        fleet.worker("prefill", "prefill", *SLOWLY)
        for worker in "ab":
            fleet.worker("decode", worker, *LINK)
        gateway = fleet.gateway("--load", "2", "--requests-max", "400", *SLOWLY)
        summary = played(fleet, gateway, act)
        assert (summary["arrived"], summary["finished"], summary["lost"]) == (400, 400, 0)
    finally:
        fleet.stop()
