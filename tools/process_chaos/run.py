"""One run: start a fleet, put it under load, make the faults of a seed, and check what came of it."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct

from loadline.client.resources import running
from loadline.errors import LoadlineError
from loadline.servers import NatsKnobs
from tools.process_chaos.checks import (
    HANDOVER_S,
    TAKEOVER_S,
    Observer,
    journal_problems,
    read_summary,
    request_problems,
    scaler_problems,
    worker_problems,
)
from tools.process_chaos.engines import Client
from tools.process_chaos.faults import inject
from tools.process_chaos.fleet import REQUESTS_PER_S, ChaosFleet
from tools.process_chaos.neighbours import report_traffic
from tools.process_chaos.plan import Fault, Plan, alone

SETTLE_S: Final = TAKEOVER_S + 1.0
_START_S: Final = 60.0
_FINISH_S: Final = 120.0
"""Time limit of the requests after the last fault."""
_POLL_S: Final = 0.05
_DEPOSED: Final = frozenset({"kill_leader", "stop_leader", "revoke_leader"})


class Outcome(Struct):
    """Result of a run."""

    faults: int
    decisions: int
    requests: int
    answers: int
    """Right answers of the engines."""
    takeovers: list[tuple[str, float]]
    """Faults after which another agent led, each with the time that it took in s."""
    violations: list[str]

    @property
    def summary(self) -> str:
        """The numbers as text."""
        served = f"{self.requests} requests, {self.answers} answers of engines"
        return f"{self.faults} faults, {self.decisions} decisions, {served}"


async def run(
    plan: Plan,
    directory: Path,
    write_line: Callable[[str], None],
    *,
    takeover_s: float = TAKEOVER_S,
    watch: Callable[[ChaosFleet], Coroutine[object, object, None]] | None = None,
) -> Outcome:
    """Run a plan; a takeover may last ``takeover_s``, and ``watch`` runs during the load.

    Raises:
        LoadlineError: The fleet cannot be started.
    """
    fleet = ChaosFleet(directory, plan, write_line)
    observer = Observer(fleet)
    takeovers: list[tuple[str, float]] = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fleet.stop)
        await fleet.start()
        store = fleet.open_store()
        stack.push_async_callback(store.close)
        await stack.enter_async_context(running(observer.run(store), "observer"))
        if not await _until(lambda: bool(observer.committed.by_id), _START_S):
            raise LoadlineError(f"the agents decided nothing in {_START_S:g} s; their logs are in {directory}")
        fleet.start_load(int(REQUESTS_PER_S * plan.duration_s))
        traffic = report_traffic(NatsKnobs(servers=fleet.nats.urls), fleet.setup.root, Random(plan.seed))  # noqa: S311
        await stack.enter_async_context(running(traffic, "neighbours"))
        if watch is not None:
            await stack.enter_async_context(running(watch(fleet), "watch"))
        began_s = time.monotonic()
        rng = Random(plan.seed)  # noqa: S311 - faults, no secrets
        client = Client(fleet.engines_url, Random(plan.seed))  # noqa: S311
        async with asyncio.TaskGroup() as group:
            group.create_task(client.ask_until(lambda: time.monotonic() >= began_s + plan.duration_s))
            for fault in plan.faults:
                await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
                write_line(f"{fault.kind}" + (f" for {fault.for_s:.1f} s" if fault.for_s else ""))
                group.create_task(inject(fault.kind, fleet, observer, fault.for_s, rng))
                if _causes_takeover(fault, plan, fleet, observer):
                    group.create_task(_time_takeover(fault.kind, observer, takeovers))
        if not await _until(fleet.gateway.ended.is_set, plan.duration_s + _FINISH_S):
            observer.violations.append(f"requests wait {_FINISH_S:g} s after the last fault")
        ended_s = time.time()
    problems = [
        *_slow_takeovers(takeovers, takeover_s),
        *journal_problems(fleet),
        *worker_problems(fleet, ended_s),
        *scaler_problems(fleet, observer.committed.by_id),
        *request_problems(fleet),
        *client.problems,
        *([] if client.answers else ["the engines have answered nothing"]),
    ]
    requests = read_summary(fleet).finished if fleet.setup.summary_file.exists() else 0
    violations = observer.violations + problems
    return Outcome(len(plan.faults), len(observer.committed.by_id), requests, client.answers, takeovers, violations)


def run_until_signalled(work: Coroutine[object, object, Outcome]) -> Outcome:
    """Run ``work``; SIGTERM interrupts it as SIGINT does, so that it ends the processes that it has started.

    Raises:
        KeyboardInterrupt: A signal has ended it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background would ignore it
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    return asyncio.run(work)


def _causes_takeover(fault: Fault, plan: Plan, fleet: ChaosFleet, observer: Observer) -> bool:
    """Return True if a fault ends the term of a leader, a standby can take over, and no other fault is near."""
    deposes = fault.kind in _DEPOSED and observer.last_leader in fleet.agents
    return deposes and fleet.has_standby and alone(fault, plan.faults, SETTLE_S)


def _slow_takeovers(takeovers: Sequence[tuple[str, float]], takeover_s: float) -> list[str]:
    """Return a problem for each takeover that lasted longer than ``takeover_s``, or than a handover may last."""
    limits_s = {"stop_leader": HANDOVER_S}
    return [
        f"{took_s:.1f} s without a leader after {kind}"
        for kind, took_s in takeovers
        if took_s > limits_s.get(kind, takeover_s)
    ]


async def _time_takeover(kind: str, observer: Observer, takeovers: list[tuple[str, float]]) -> None:
    """Measure how long it takes until another term begins."""
    terms, began_s = len(observer.takeovers), time.monotonic()
    await _until(lambda: len(observer.takeovers) > terms, 2 * SETTLE_S)
    led_s = observer.takeovers[terms][0] if len(observer.takeovers) > terms else time.monotonic()
    takeovers.append((kind, led_s - began_s))


async def _until(condition: Callable[[], bool], deadline_s: float) -> bool:
    deadline = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(_POLL_S)
    return condition()
