"""Migrate commands for Llumnix's engines, against real gRPC servers, in virtual time of the statuses."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import msgspec
import pytest

from loadline.adapters.grpc_calls import GrpcCalls
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.sources.llumnix_messages import MigrateResponse, read_instance, read_status
from loadline.sources.llumnix_migrations import Engine, LlumnixMigrations
from loadline.wire.codec import Rejected
from loadline.wire.messages import MigrateCommand
from tests.support.sources import Llumlet
from tests.unit.sources.test_llumnix_status import metadata, status


class World:
    """Two engines, the llumlet of the first one, and a clock."""

    def __init__(self, llumlet: Llumlet, calls: GrpcCalls) -> None:
        self.llumlet = llumlet
        self.now_ms = 1_000
        self.engines: dict[str, Engine] = {}
        self.put("a", llumlet_port=llumlet.port)
        self.put("b")
        self.migrations = LlumnixMigrations(calls, lambda _m, _p, worker: self.engines.get(worker), lambda: self.now_ms)

    def put(self, name: str, at_ms: int = 1, leaving: int = 0, **fields: Any) -> None:
        instance = read_instance("k", metadata(instance_id=name, ip="127.0.0.1", **fields))
        stored = read_status("k", status(timestamp_ms=at_ms, num_migrate_out_reqs=leaving))
        assert not isinstance(instance, Rejected)
        assert not isinstance(stored, Rejected)
        self.engines[name] = Engine("p", instance, stored)

    def report(self, at_ms: int, leaving: int) -> list[tuple[str, int, int]]:
        """Store a status of the source; return phase, moved and failed requests of the reports that are due."""
        self.put("a", at_ms, leaving, llumlet_port=self.llumlet.port)
        return [(one.phase, one.moved, one.failed) for one in self.migrations.reports()]


def command(**fields: Any) -> MigrateCommand:
    source, destination = MigrationEndpoint("p", "a", 1), MigrationEndpoint("p", "b", 1)
    known = MigrateCommand(
        command_id="c1",
        model="m",
        epoch=5,
        source=source,
        destination=destination,
        trigger="decode_load",
        rule="NUM_REQ",
        order="LR",
        value=3,
        requests_max=2,
        ttl_ms=10_000,
    )
    return msgspec.structs.replace(known, **fields)


def run(scenario: Callable[[World], Awaitable[None]], timeout_s: float = 20.0) -> None:
    async def whole() -> None:
        calls = GrpcCalls(4, timeout_s)
        async with Llumlet().serving() as llumlet:
            await scenario(World(llumlet, calls))
            await calls.close()

    asyncio.run(whole())


def test_a_command_reaches_the_llumlet_with_all_fields_and_never_twice() -> None:
    async def scenario(world: World) -> None:
        first = await world.migrations.answer(command())
        assert first is not None
        assert (first.accepted, first.requests) == (True, 2)
        assert await world.migrations.answer(command()) == first
        (request,) = world.llumlet.requests
        assert (request.src_engine_id, request.dst_engine_id) == ("a", "b")
        assert (request.dst_engine_ip, request.dst_engine_port) == ("10.1.0.7", 6_000)
        assert (request.migration_type, request.migration_req_policy) == ("NUM_REQ", "LR")
        assert (request.num_reqs, request.trigger_policy) == (2, "decode_load")
        assert request.WhichOneof("migration_value") == "num_reqs"

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "amount"),
    [
        ({"value": -1.0}, ("num_reqs", -1)),
        ({"rule": "TOKEN", "value": 1_024.0}, ("num_tokens", 1_024)),
        ({"rule": "TOKEN", "value": 1_024.0, "tokens_max": 512}, ("num_tokens", 512)),
        ({"rule": "RATIO", "value": 0.25}, ("kv_cache_usage_ratio", 0.25)),
    ],
)
def test_the_amount_is_in_the_unit_of_the_rule(fields: dict[str, Any], amount: tuple[str, float]) -> None:
    async def scenario(world: World) -> None:
        await world.migrations.answer(command(**fields))
        (request,) = world.llumlet.requests
        name = request.WhichOneof("migration_value")
        assert (name, getattr(request, name)) == amount

    run(scenario)


def test_a_migration_is_done_when_a_later_status_shows_none_on_the_way() -> None:
    async def scenario(world: World) -> None:
        await world.migrations.answer(command())
        assert world.report(1, 0) == [("admitted", 0, 0)]
        assert world.report(1, 0) == [], "the same status tells nothing new"
        assert world.report(2, 1) == []
        world.now_ms += 500
        assert world.report(3, 0) == [("done", 2, 0)]
        assert world.report(4, 0) == []
        for _ in range(2):  # reports may be lost
            world.now_ms += 1_000
            assert world.report(5, 0) == [("done", 2, 0)]
        world.now_ms += 1_000
        assert world.report(6, 0) == []

    run(scenario)


def test_a_migration_that_no_status_showed_is_done_after_two_statuses() -> None:
    async def scenario(world: World) -> None:
        await world.migrations.answer(command())
        assert world.report(2, 0) == [("admitted", 0, 0)]
        assert world.report(3, 0) == [("done", 2, 0)]

    run(scenario)


def test_a_migration_that_never_ends_is_aborted_at_its_deadline() -> None:
    async def scenario(world: World) -> None:
        await world.migrations.answer(command())
        world.report(2, 1)
        world.now_ms += 9_999
        assert world.report(3, 1) == []
        world.now_ms += 1
        assert world.report(4, 1) == [("aborted", 0, 2)]

    run(scenario)


def test_what_was_not_begun_is_refused_and_what_may_have_been_is_not_answered() -> None:
    async def scenario(world: World) -> None:
        async def reason(**fields: Any) -> str | None:
            reply = await world.migrations.answer(command(**fields))
            assert reply is None or not reply.accepted
            return None if reply is None else str(reply.reason)

        world.llumlet.answer = MigrateResponse(success=False, message="no slot")
        assert await reason(command_id="1") == "no_slots"
        world.llumlet.error = grpc.StatusCode.INVALID_ARGUMENT
        assert await reason(command_id="2") == "unsupported"
        world.llumlet.error = grpc.StatusCode.UNAVAILABLE
        assert await reason(command_id="3") is None
        calls = len(world.llumlet.requests)
        assert await reason(command_id="3") is None
        assert len(world.llumlet.requests) == calls, "a repeated command with an unknown outcome calls nobody"
        assert await reason(command_id="4", epoch=4) == "stale_epoch"
        del world.engines["b"]
        assert await reason(command_id="5") == "destination_unknown"
        del world.engines["a"]
        assert await reason(command_id="6") == "gone"
        world.put("b")
        world.put("a", llumlet_port=1)
        assert await reason(command_id="7") == "gone"
        assert world.migrations.reports() == []

    run(scenario)


def test_a_silent_llumlet_costs_its_time_limit_and_delays_no_other() -> None:
    async def scenario(world: World) -> None:
        world.llumlet.delay_s = 30.0
        async with Llumlet().serving() as quick:
            world.put("q", llumlet_port=quick.port)
            silent = asyncio.create_task(world.migrations.answer(command(command_id="1")))
            source = MigrationEndpoint("p", "q", 1)
            reply = await world.migrations.answer(command(command_id="2", source=source))
            assert reply is not None
            assert reply.accepted
            assert not silent.done()
            assert await silent is None

    run(scenario, timeout_s=1.0)


def test_the_pool_closes_idle_connections_and_a_moved_llumlet_is_found() -> None:
    async def whole() -> None:
        calls = GrpcCalls(2, 10.0)
        async with Llumlet().serving() as first, Llumlet().serving() as second, Llumlet().serving() as third:
            for llumlet in (first, second, third, first):
                world = World(llumlet, calls)
                reply = await world.migrations.answer(command())
                assert reply is not None
                assert reply.accepted
                assert calls.connections <= 2
        await calls.close()

    asyncio.run(whole())
