"""What keeps moves safe, switched off one by one: as ``rails``, for what plans and carries out moves.

To find seeds anew: ``python -m tests.simulation.move_rails``.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

from loadline.client.fence import EpochFence
from loadline.client.handover.destination import HandoverDestination
from loadline.client.handover.effects import DiscardRequest, RunRequest, Transfer
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import HandoverReply, HandoverRequest
from loadline.client.handover.ownership import RequestOwner, RequestOwners
from loadline.client.handover.source import HandoverSource
from loadline.core.migration.columns import IN_SLOTS, OUT_SLOTS, RECEIVING, SENDING
from loadline.core.migration.load_metrics import SLOTS_IN, SLOTS_OUT
from loadline.core.migration.load_view import LoadView
from loadline.core.rounds.migration import MigrationPipeline
from loadline.sim.chaos.frontend import ChaosFrontend
from loadline.sim.chaos.runner import ChaosResult as Played
from loadline.sim.chaos.runner import run_plan
from loadline.sim.chaos.stub_engine import StubEngine
from loadline.sim.engine import EngineEvent, Request
from tests.simulation.rails import Rail, around, both, find, instead


def claim_anything(_old: Any, owners: RequestOwners, request_id: str, worker: str, incarnation: int, hop: int) -> bool:
    """Whoever claims gets it, if it was ever here."""
    if owners.owner(request_id) is not None:
        owners._owners[request_id] = RequestOwner(worker, incarnation, hop)
    return True


def run_unasked(_old: Any, destination: HandoverDestination, message: HandoverRequest, _now_ms: int) -> Any:
    """A destination runs what it is handed at once."""
    name, hop, held = message.request.request_id, message.request.hop, destination._held
    if held.expect(name, hop) and held.resolve_claim(name, hop, granted=True) == "run":
        return HandoverReply(accepted=True), [DiscardRequest(name), RunRequest(message.request)]
    return HandoverReply(accepted=held.hop(name) == hop), []


def resume_unasked(
    old: Any, source: HandoverSource, transfer: Transfer, reply: HandoverReply | None, now_ms: int
) -> Any:
    """A source that hears nothing takes the handover for failed."""
    one = source._at(transfer, "handover")
    if one is None or one.request is None or (reply is not None and reply.accepted):
        return old(source, transfer, reply, now_ms)
    source._held.resolve_claim(transfer.request_id, one.request.hop, granted=True)
    return [RunRequest(one.request), *source._fail(transfer, "destination_lost", now_ms)]


def take_and_go_on(_old: Any, engine: StubEngine, request_id: str, now_ms: float) -> Request | None:
    """A source goes on with what it hands over."""
    one = engine._running.get(request_id)
    if one is None:
        return None
    engine._events.append(EngineEvent("detached", request_id, now_ms))
    return replace(one.request, generated_tokens=min(one.generated(now_ms), one.request.osl_tokens - 1))


def forget_at_once(_old: Any, _holds: HeldRequests, _request_id: str, _hop: int) -> bool:
    """Whatever comes is news."""
    return True


def look_away(_old: Any, keeper: ChaosFrontend) -> None:
    """The frontend never asks what workers have."""
    keeper._timeline.call_later(60_000.0, keeper._poll_workers)


def everybody(view: LoadView) -> Any:
    """Whoever is known takes requests in."""
    return view.columns.alive | True


def plan_always(old: Any, planner: MigrationPipeline, heard: Any, now: int) -> Any:
    """Who has led goes on as if it did."""
    leadership = planner.state.leadership
    phase, leadership.phase = leadership.phase, "leading"
    found = old(planner, heard, now)
    leadership.phase = phase
    return found


@contextlib.contextmanager
def as_many_as_they_say() -> Iterator[None]:
    """Who has slots has them all filled."""

    def free_in(view: LoadView) -> Any:
        return np.where(view.in_flight(SENDING) > 0.0, 0.0, view.measure(SLOTS_IN) - view.in_flight(IN_SLOTS))

    def free_out(view: LoadView) -> Any:
        return np.where(view.in_flight(RECEIVING) > 0.0, 0.0, view.measure(SLOTS_OUT) - view.in_flight(OUT_SLOTS))

    with _slots(free_in, free_out):
        yield


@contextlib.contextmanager
def no_chains_looked_for() -> Iterator[None]:
    """Who gives requests away takes some in, and the other way round."""

    def free_in(view: LoadView) -> Any:
        return np.minimum(view.measure(SLOTS_IN), view.knobs.migrations_per_worker_max) - view.in_flight(IN_SLOTS)

    def free_out(view: LoadView) -> Any:
        return np.minimum(view.measure(SLOTS_OUT), view.knobs.migrations_per_worker_max) - view.in_flight(OUT_SLOTS)

    with _slots(free_in, free_out):
        yield


def _slots(free_in: Any, free_out: Any) -> contextlib.ExitStack:
    """Have the slots that workers have reckoned in another way."""
    stack = contextlib.ExitStack()
    for name, value in (("free_in", property(free_in)), ("free_out", property(free_out)), ("reserve", _take_nothing)):
        stack.enter_context(patch.object(LoadView, name, value))
    return stack


def _take_nothing(*_args: Any) -> None:
    """What a pair takes is not there for the next one still."""


RAILS: dict[str, Rail] = {
    "owners: compare and set": Rail(around(RequestOwners, "claim", claim_anything), 0, "I20-once"),
    "holds: a hop is used once": Rail(around(HeldRequests, "_is_new", forget_at_once), 0, "I20-once"),
    "destination: claims first": Rail(around(HandoverDestination, "on_handover_request", run_unasked), 0, "I20-owner"),
    "source: claims first": Rail(around(HandoverSource, "on_handover_reply", resume_unasked), 0, "I20-owner"),
    "source: stops first": Rail(around(StubEngine, "detach", take_and_go_on), 0, "I20-stopped"),
    "worker: earlier terms": Rail(instead(EpochFence, "admit", value=True), 3, "I21-stale"),
    "frontend: looks for what is lost": Rail(around(ChaosFrontend, "_poll_workers", look_away), 0, "L6-served"),
    "planner: only a leader, within its lease": Rail(
        both(instead(MigrationPipeline, "_may_command", value=True), around(MigrationPipeline, "plan", plan_always)),
        0,
        "I21-fence",
    ),
    "planner: to who is ready": Rail(lambda: patch.object(LoadView, "serving", property(everybody)), 0, "I21-where"),
    "planner: no chains": Rail(no_chains_looked_for, 0, "I21-chain"),
    "planner: not too many": Rail(as_many_as_they_say, 0, "I21-bounds"),
}


def broken(name: str, seed: int) -> Played:
    """What a seed comes to without a rail."""
    with RAILS[name].off():
        return run_plan(seed)


if __name__ == "__main__":
    find(RAILS, broken)
