"""Answers of a worker to the cases of Llumnix on what its agents answer; and the kinds of cases that nobody answers."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from loadline.client.mover import MoveRefused, Moving
from loadline.client.moves import Moves
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerRecord
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
    """An engine with one request, whose copy does as it is told. It is a ``Mover``."""

    def __init__(self, raises: Exception | None) -> None:
        self.asked = False
        self._raises = raises

    def select(self, _command: MigrateCommand) -> Sequence[MigratableRequest]:
        self.asked = True
        return [MigratableRequest("r", 100, 5)]

    async def copy(self, _request: str, _command: MigrateCommand, _admitted: Callable[[], None]) -> None:
        if self._raises is not None:
            raise self._raises

    async def switch(self, _request: str, _command: MigrateCommand) -> bool:
        return True


HANDLERS: Final[dict[str, tuple[Exception | None, int]]] = {
    "": (None, 4),
    "raises generic error": (RuntimeError("the engine is broken"), 4),
    "raises not-enough-slots": (MoveRefused("destination_refused"), 0),
}
"""What the engine does, and how many slots the worker has."""


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
    """How it ends: a command that was not understood, the reason of a refusal, or what the last report says."""
    last: asyncio.Future[MigrationReport] = asyncio.get_running_loop().create_future()

    async def publish(report: MigrationReport) -> None:
        if report.phase in {"done", "aborted"} and not last.done():
            last.set_result(report)

    async with Moving(Moves(RECORD, slots_out=slots), engine, "w", publish) as moving:
        answer = await moving.answer(json.dumps(command).encode())
        if answer is None:
            return "ignored"
        reply = json.loads(answer)
        if not reply["accepted"]:
            return str(reply["reason"])
        async with asyncio.timeout(10):
            report = await last
        return report.reason or report.phase


def not_covered(why: str) -> Answer:
    def answer(_case: dict[str, Any]) -> Any:
        raise NotCovered(why)

    return answer


DISPATCH: Final = "who gets a new request is chosen by a router in front of the workers, which loadline is not"
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
