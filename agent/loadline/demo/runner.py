"""Run of the demo, from start to summary, with a display of the agents' statuses."""

import asyncio
import signal
from typing import Any

from loadline.adapters.nats_bus import NatsBus
from loadline.core.queries.status import summarise
from loadline.core.vocabulary.status import AgentStatus, DecisionSummary
from loadline.demo.display import Display
from loadline.demo.migration_log import MigrationLog
from loadline.demo.stack import DemoOptions, DemoResult, DemoStack
from loadline.servers import NatsKnobs
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.messages import DrainReport, MigrationReport, ScalingDecision
from loadline.wire.subjects import Subjects

FLEET_S = 30.0
"""Maximum time to wait for the first workers of every pool before the load starts."""
TICK_S = 0.1


class StatusMonitor:
    """Subscriber that displays the leader's statuses and the changes between them."""

    def __init__(self, view: Display) -> None:
        self.decisions = 0
        self.populated = asyncio.Event()
        """Set once each pool has its workers."""
        self.loaded = asyncio.Event()
        """Set once the gateway reports its traffic."""
        self._view = view
        self._known: dict[str, tuple[str, str]] = {}
        self._leader = ""
        self._drained: set[str] = set()
        self._migrations = MigrationLog()

    def on_status(self, _subject: str, payload: bytes) -> None:
        """Process a published status."""
        status = decode_as(AgentStatus, payload)
        if isinstance(status, Rejected) or not status.leading:
            return
        if status.agent != self._leader:
            self._leader = status.agent
            self._view.line(f"{status.agent} leads, epoch {status.epoch}")
        for model in status.models:
            if model.decision is not None:
                self._decision(model.model, model.decision)
            if all(pool.desired and pool.ready >= pool.desired for pool in model.pools):
                self.populated.set()
        for line in self._migrations.take_lines():
            self._view.line(line)
        self._view.status(status)

    def on_decision(self, _subject: str, payload: bytes) -> None:
        """Process an announced decision: statuses, once a second, contain only the newest one."""
        decision = decode_as(ScalingDecision, payload)
        if not isinstance(decision, Rejected) and decision.sequence > self.decisions:
            self._decision(decision.model, summarise(decision, "committed"))

    def on_traffic(self, _subject: str, _payload: bytes) -> None:
        """Note that the gateway reports its traffic."""
        self.loaded.set()

    def on_drain_report(self, _subject: str, payload: bytes) -> None:
        """Process a drain report, which a worker repeats until it has left."""
        report = decode_as(DrainReport, payload)
        if not isinstance(report, Rejected) and report.worker not in self._drained:
            self._drained.add(report.worker)
            self._view.line(f"{report.worker} drained")

    def on_migration_report(self, _subject: str, payload: bytes) -> None:
        """Process a migration report; completed migrations are displayed with the next status, since they are many."""
        report = decode_as(MigrationReport, payload)
        if not isinstance(report, Rejected):
            self._migrations.add(report)

    def _decision(self, model: str, decision: DecisionSummary) -> None:
        self.decisions = max(self.decisions, decision.sequence)
        before, self._known[model] = self._known.get(model, ("", "")), (decision.decision_id, decision.state)
        if before[0] != decision.decision_id:
            targets = ", ".join(f"{pool} {count}" for pool, count in decision.targets.items())
            self._view.line(f"decision #{decision.sequence}: {targets} ({', '.join(decision.reasons)})")
        elif decision.state in {"refused", "expired"} and before[1] != decision.state:
            self._view.line(f"decision #{decision.sequence} {decision.state}")


async def run_demo(options: DemoOptions, display: Display) -> tuple[DemoResult, int] | None:
    """Run the demo until its time is over, its trace ends, or SIGINT or SIGTERM.

    The display begins after the signal handlers, so a user who sees it can stop the demo.

    Returns:
        The result and the number of decisions; None if it was stopped before the load started.

    Raises:
        LoadlineError: A process could not be started, or the gateway left no account.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with display as view:
        return await _run_until(stop, options, view)


async def _run_until(stop: asyncio.Event, options: DemoOptions, view: Display) -> tuple[DemoResult, int] | None:
    stack, monitor = DemoStack(options, view.line), StatusMonitor(view)
    bus: NatsBus | None = None
    try:
        if await _unless(stop, stack.start()):
            view.line(f"NATS {stack.demo.nats}  etcd {stack.demo.etcd}  files {options.directory}")
            view.line(f"query: loadline status --nats {stack.demo.nats} --root {options.root}")
            view.line(f"live page: http://127.0.0.1:{options.http_port}/")
            bus = NatsBus(NatsKnobs(servers=(stack.demo.nats,)), name="loadline up")
            await bus.connect(lambda _connected: None)
            await bus.subscribe(Subjects(options.root).all_of("status"), monitor.on_status)
            await bus.subscribe(Subjects(options.root).all_of("decision"), monitor.on_decision)
            await bus.subscribe(Subjects(options.root).all_of("traffic"), monitor.on_traffic)
            await bus.subscribe(Subjects(options.root).all_of("drained"), monitor.on_drain_report)
            await bus.subscribe(Subjects(options.root).all_of("migration"), monitor.on_migration_report)
            await _unless(stop, stack.wait_populated(monitor.populated), FLEET_S)
            if not stop.is_set():
                ended = stack.start_load()
                await _unless(stop, _unless(ended, monitor.loaded.wait()))  # it takes a second or more to start
                if monitor.loaded.is_set():
                    view.line("load starts")
                    await _unless(stop, ended.wait(), options.for_s or None)
        view.line("stopping")
    finally:
        if bus is not None:
            await bus.close()
        await stack.stop()
    result = stack.result()
    return (result, monitor.decisions) if result is not None else None


async def _unless(stop: asyncio.Event, work: Any, timeout_s: float | None = None) -> bool:
    """Wait for some work until it ends, the demo stops or the timeout; return whether the work finished."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({task, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            task.result()
        return task in done
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
