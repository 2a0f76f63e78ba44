"""Mutations of the safeguards of migrations, like ``mutations`` for decisions.

``python -m tests.simulation.migration_mutations`` finds new seeds.
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
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.measures import SLOTS_IN, SLOTS_OUT
from loadline.core.rounds.migration import MigrationPipeline
from loadline.sim.chaos.frontend import ChaosFrontend
from loadline.sim.chaos.runner import ChaosResult, run_plan
from loadline.sim.chaos.stub_engine import StubEngine
from loadline.sim.engine import EngineEvent, Request
from tests.simulation.mutation_runs import Mutation, combined, constant, find_seeds, wrapped


def claim_anything(_old: Any, owners: RequestOwners, request_id: str, worker: str, incarnation: int, hop: int) -> bool:
    """Give a request to any worker that claims it."""
    if owners.owner(request_id) is not None:
        owners._owners[request_id] = RequestOwner(worker, incarnation, hop)
    return True


def run_unasked(_old: Any, destination: HandoverDestination, message: HandoverRequest, _now_ms: int) -> Any:
    """Let a destination run a request before it claims it."""
    name, hop, held = message.request.request_id, message.request.hop, destination._held
    if held.expect(name, hop) and held.resolve_claim(name, hop, granted=True) == "run":
        return HandoverReply(accepted=True), [DiscardRequest(name), RunRequest(message.request)]
    return HandoverReply(accepted=held.hop(name) == hop), []


def resume_unasked(
    old: Any, source: HandoverSource, transfer: Transfer, reply: HandoverReply | None, now_ms: int
) -> Any:
    """Let a source without an answer resume the request."""
    one = source._at(transfer, "handover")
    if one is None or one.request is None or (reply is not None and reply.accepted):
        return old(source, transfer, reply, now_ms)
    source._held.resolve_claim(transfer.request_id, one.request.hop, granted=True)
    return [RunRequest(one.request), *source._fail(transfer, "destination_lost", now_ms)]


def detach_and_continue(_old: Any, engine: StubEngine, request_id: str, now_ms: float) -> Request | None:
    """Let a source continue a request that it hands over."""
    one = engine._running.get(request_id)
    if one is None:
        return None
    engine._events.append(EngineEvent("detached", request_id, now_ms))
    return replace(one.request, generated_tokens=min(one.generated(now_ms), one.request.osl_tokens - 1))


def accept_every_hop(_old: Any, _holds: HeldRequests, _request_id: str, _hop: int) -> bool:
    """Accept every hop as new."""
    return True


def never_poll(_old: Any, keeper: ChaosFrontend) -> None:
    """Let the frontend never poll workers."""
    keeper._timeline.call_later(60_000.0, keeper._poll_workers)


def all_known(view: LoadView) -> Any:
    """Let all known workers be destinations."""
    return view.columns.alive | True


def plan_always(old: Any, planner: MigrationPipeline, listening_since_ms: Any, now: int) -> Any:
    """Let a former leader plan as if it led."""
    leadership = planner.state.leadership
    phase, leadership.phase = leadership.phase, "leading"
    found = old(planner, listening_since_ms, now)
    leadership.phase = phase
    return found


@contextlib.contextmanager
def use_all_slots() -> Iterator[None]:
    """Use all slots of a worker."""

    def free_in(view: LoadView) -> Any:
        return np.where(view.in_flight(SENDING) > 0.0, 0.0, view.measure(SLOTS_IN) - view.in_flight(IN_SLOTS))

    def free_out(view: LoadView) -> Any:
        return np.where(view.in_flight(RECEIVING) > 0.0, 0.0, view.measure(SLOTS_OUT) - view.in_flight(OUT_SLOTS))

    with _slots(free_in, free_out):
        yield


@contextlib.contextmanager
def allow_chains() -> Iterator[None]:
    """Let a source be a destination, and vice versa."""

    def free_in(view: LoadView) -> Any:
        return np.minimum(view.measure(SLOTS_IN), view.knobs.migrations_per_worker_max) - view.in_flight(IN_SLOTS)

    def free_out(view: LoadView) -> Any:
        return np.minimum(view.measure(SLOTS_OUT), view.knobs.migrations_per_worker_max) - view.in_flight(OUT_SLOTS)

    with _slots(free_in, free_out):
        yield


def _slots(free_in: Any, free_out: Any) -> contextlib.ExitStack:
    """Replace the computation of free slots."""
    stack = contextlib.ExitStack()
    for name, value in (
        ("free_in", property(free_in)),
        ("free_out", property(free_out)),
        ("reserve", _reserve_nothing),
    ):
        stack.enter_context(patch.object(LoadView, name, value))
    return stack


def _reserve_nothing(*_args: Any) -> None:
    """Keep the slots that a pair uses available to the next one."""


MUTATIONS: dict[str, Mutation] = {
    "owners: compare and set": Mutation(wrapped(RequestOwners, "claim", claim_anything), 0, "I20-once", hours=1.0),
    "holds: a hop is used once": Mutation(wrapped(HeldRequests, "_is_new", accept_every_hop), 0, "I20-once", hours=1.0),
    "destination: claims first": Mutation(
        wrapped(HandoverDestination, "on_handover_request", run_unasked), 0, "I20-owner", hours=1.0
    ),
    "source: claims first": Mutation(
        wrapped(HandoverSource, "on_handover_reply", resume_unasked), 0, "I20-owner", hours=1.0
    ),
    "source: stops first": Mutation(wrapped(StubEngine, "detach", detach_and_continue), 0, "I20-stopped", hours=1.0),
    "worker: earlier terms": Mutation(constant(EpochFence, "admit", value=True), 5, "I21-stale", hours=1.0),
    "frontend: polls for lost requests": Mutation(
        wrapped(ChaosFrontend, "_poll_workers", never_poll), 0, "L6-served", hours=1.0
    ),
    "planner: only a leader, within its lease": Mutation(
        combined(
            constant(MigrationPipeline, "_may_command", value=True), wrapped(MigrationPipeline, "plan", plan_always)
        ),
        0,
        "I21-fence",
        hours=1.0,
    ),
    "planner: only to ready workers": Mutation(
        lambda: patch.object(LoadView, "serving", property(all_known)), 1, "I21-where", hours=1.0
    ),
    "planner: no chains": Mutation(allow_chains, 0, "I21-chain", hours=1.0),
    "planner: limits": Mutation(use_all_slots, 1, "I21-bounds", hours=1.0),
}


def run_mutated(name: str, seed: int) -> ChaosResult:
    """Run the plan of a seed with a mutation."""
    mutation = MUTATIONS[name]
    with mutation.apply():
        return run_plan(seed, mutation.hours)


if __name__ == "__main__":
    find_seeds(MUTATIONS, run_mutated)
