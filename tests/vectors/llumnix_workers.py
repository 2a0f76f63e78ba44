"""Answers of a worker to Llumnix's cases of its agents' replies, and the kinds of cases that are not covered."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import (
    ClaimRequest,
    HandedRequest,
    HandoverReply,
    HandoverRequest,
    RoomReply,
    RoomRequest,
)
from loadline.client.handover.migrator import RequestMigrator
from loadline.client.handover.source import StoppedRequest
from loadline.client.migratable_engine import MigrationOptions, MigrationRefused
from loadline.client.migration_driver import MigrationDriver
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import Unsubscribe
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.messages import MigrateCommand, MigrationReport
from tests.vectors.answering import Answer, NotCovered, only

RECORD: Final = WorkerRecord("m", "p", "w", "decode", 1)
COMMAND: Final = {
    "command_id": "c",
    "model": "m",
    "epoch": 5,
    "source": {"pool": "p", "worker": "w", "incarnation": 1},
    "destination": {"pool": "p", "worker": "other", "incarnation": 1},
    "trigger": "decode_load",
    "order": "LCR",
    "rule": "NUM_REQ",
    "value": 1,
    "ttl_ms": 10_000,
}
VALUES: Final = ("num_reqs", "num_tokens", "kv_cache_usage_ratio")


class Engine:
    """Engine with one request, whose copy succeeds or raises as configured."""

    def __init__(self, raises: Exception | None) -> None:
        self.asked = False
        self.held_requests = HeldRequests()
        self.held_requests.assign("r", 0)
        self._raises = raises

    def migratable_requests(self) -> Sequence[MigratableRequest]:
        self.asked = True
        return [MigratableRequest("r", 100, 5)]

    def has_room(self, _kv_tokens: int) -> bool:
        return False

    async def copy(self, _request_id: str, _command: MigrateCommand) -> None:
        if self._raises is not None:
            raise self._raises

    async def stop(self, _request_id: str, _command: MigrateCommand) -> StoppedRequest:
        return StoppedRequest("f", b"")

    def run(self, _request: HandedRequest) -> None:
        raise NotCovered("no request returns")

    def discard(self, _request_id: str) -> None:
        pass


class AcceptingPeers:
    """Destination that accepts everything."""

    async def ask_room(self, _worker: str, _message: RoomRequest) -> RoomReply:
        return RoomReply(granted=True)

    async def hand_over(self, _worker: str, _message: HandoverRequest) -> HandoverReply:
        return HandoverReply(accepted=True)

    async def claim(self, _frontend: str, _message: ClaimRequest) -> None:
        return None

    async def serve_worker(self, _worker: str, *_answers: object) -> Unsubscribe:
        return partial(asyncio.sleep, 0)


HANDLERS: Final[dict[str, tuple[Exception | None, int]]] = {
    "": (None, 4),
    "raises generic error": (RuntimeError("the engine is broken"), 4),
    "raises not-enough-slots": (MigrationRefused("destination_refused"), 0),
}
"""Exception that the engine raises, and slots of the worker, by handler."""


def migrate_rpc(case: dict[str, Any]) -> dict[str, Any]:
    given = case["given"]
    only(given, "handler", "migration_type", *VALUES)
    if given.get("handler", "") not in HANDLERS:
        raise NotCovered(f"no answer for {given['handler']}")
    raises, slots = HANDLERS[given.get("handler", "")]
    engine = Engine(raises)
    command = COMMAND | {"rule": given.get("migration_type", "NUM_REQ")}
    for key in VALUES:
        command["value"] = given.get(key, command["value"])
    word = asyncio.run(_word(engine, command, slots))
    return {"answer": word, "handler_called": engine.asked}


async def _word(engine: Engine, command: dict[str, Any], slots: int) -> str:
    """Return the outcome: ``ignored`` if the command is invalid, else the reason of the refusal or last report."""
    last: asyncio.Future[MigrationReport] = asyncio.get_running_loop().create_future()

    async def publish(report: MigrationReport) -> None:
        if report.phase in {"done", "aborted"} and not last.done():
            last.set_result(report)

    migrator = RequestMigrator(RECORD, engine.held_requests, slots_out=slots)
    async with MigrationDriver(migrator, MigrationOptions(engine, AcceptingPeers()), "w", publish) as driver:
        decoded = decode_as(MigrateCommand, json.dumps(command).encode())
        if isinstance(decoded, Rejected):
            return "ignored"
        reply = driver.answer(decoded)
        assert reply is not None
        if not reply.accepted:
            return str(reply.reason)
        async with asyncio.timeout(10):
            report = await last
        return report.reason or report.phase


def not_covered(why: str) -> Answer:
    def answer(_case: dict[str, Any]) -> Any:
        raise NotCovered(why)

    return answer


DISPATCH: Final = "a router in front of the workers assigns new requests; loadline is none"
POOL: Final = "workers are asked over one connection of NATS: there is no pool of connections to them"
PREDICTOR: Final = "it predicts the first token of a request that is dispatched, for a router"

ANSWERS: dict[str, Answer] = {
    "llumnix.migrate_rpc": migrate_rpc,
    "llumnix.dispatch_selector": not_covered(DISPATCH),
    "llumnix.dispatch_sequence": not_covered(DISPATCH),
    "llumnix.local_account": not_covered(DISPATCH),
    "llumnix.prefix_hit": not_covered(DISPATCH),
    "llumnix.conn_pool": not_covered(POOL),
    "llumnix.predictor_quadratic": not_covered(PREDICTOR),
    "llumnix.predictor_constant": not_covered(PREDICTOR),
}
