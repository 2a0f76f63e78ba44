"""The agent's only loop. All other tasks only add to the inbox."""

import asyncio
from collections.abc import Callable, Coroutine

from loadline.adapters.logs import bounded
from loadline.config import RuntimeKnobs
from loadline.core.controller import Controller
from loadline.core.vocabulary.effects import AnyEffect, FitForecast, SolveAllocation
from loadline.core.vocabulary.events import BusConnectionChanged, ShutdownRequested, StoreConnectionChanged
from loadline.ports import Bus, Clock, DecisionTraces, Fitter, Journal, Store
from loadline.runtime.effects import follow_nothing
from loadline.runtime.feeds import Connect, Follow
from loadline.runtime.inbox import Inbox
from loadline.runtime.registry import RegistryTranslator
from loadline.runtime.reports import Reports
from loadline.runtime.turns import FRAME_KINDS, Turns
from loadline.wire.codec import Rejected
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects

SHUTDOWN_TIMEOUT_S = 5.0
"""Time limit of a shutdown for a commit in progress and for revoking the leader's lease."""

_log = bounded("agent")


class Runtime:
    """Runs a controller on a clock, a bus, a store and a journal.

    Args:
        controller: The core.
        clock: Supplies the time of every turn.
        bus: Delivers frames; carries announcements and commands.
        store: Holds the registry and the decisions.
        fitter: Makes forecasts.
        journal: Records every turn; None: no journal.
        root: First tokens of all subjects.
        namespace: Namespace of all keys.
        knobs: Pace and bounds of the loop.
        frame_bytes_max: Larger frames are refused.
        version: Version written to the journal.
        on_turn: Called with the duration (s) of each turn; feeds the watchdog and the metrics.
        on_rejected: Called with every refused frame and registry record.
        traces: Receives the decisions that have ended; None: no traces.
        follow: Follows the store; None: ``store`` does.
        connect: Connects to the bus; None: ``bus`` does.
    """

    def __init__(
        self,
        *,
        controller: Controller,
        clock: Clock,
        bus: Bus,
        store: Store,
        fitter: Fitter,
        journal: Journal | None,
        root: str,
        namespace: str,
        knobs: RuntimeKnobs,
        frame_bytes_max: int,
        version: str,
        on_turn: Callable[[float], None],
        on_rejected: Callable[[Rejected], None],
        traces: DecisionTraces | None = None,
        follow: Follow | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.controller = controller
        self.clock = clock
        self.bus = bus
        self.subjects = Subjects(root)
        self._journal = journal
        self._knobs = knobs
        self._on_turn = on_turn
        self._on_rejected = on_rejected
        self._keys = Keys(namespace)
        self._awake = asyncio.Event()
        self.inbox = Inbox(knobs.inbox_frames_max, self._awake.set, self.subjects)
        self._follow = follow or store.follow
        self._connect = connect or bus.connect
        self._shared = bool(controller.settings.sharing.layout)
        # Lines of an agent that leads some shards and gives others back would not tell which.
        self._log = _log.bind(scope=controller.settings.scope) if self._shared else _log
        self._reports = Reports(bus, self.subjects, self.inbox.offer_all, self.inbox.put) if self._shared else None
        self._turns = Turns(
            controller=controller,
            bus=bus,
            store=store,
            fitter=fitter,
            journal=journal,
            subjects=self.subjects,
            keys=self._keys,
            inbox=self.inbox,
            spawn=self._spawn,
            log=self._log,
            batch_max=knobs.batch_max,
            frame_bytes_max=frame_bytes_max,
            version=version,
            on_rejected=on_rejected,
            follow=follow_nothing if self._reports is None else self._reports.follow,
            traces=traces,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        """Effects that a shutdown waits for."""
        self._computations: set[asyncio.Task[None]] = set()
        """Effects in child processes, whose results nobody needs after a shutdown."""
        self._stopping = False

    @property
    def turns(self) -> int:
        """Number of turns so far."""
        return self._turns.count

    @property
    def frames(self) -> int:
        """Number of frames processed so far."""
        return self._turns.frames

    async def run(self) -> None:
        """Run until ``stop``; return when leadership is resigned, or after ``SHUTDOWN_TIMEOUT_S``."""
        scope = self.controller.settings.scope
        registry = RegistryTranslator(self._keys, scope, self.inbox.put, self._on_rejected, shared=self._shared)
        follow = self._follow(
            self._keys.prefix,
            registry.on_snapshot,
            registry.on_changes,
            lambda connected: self.inbox.put(StoreConnectionChanged(connected)),
        )
        # Concurrent with the loop, which must turn and stop while neither service answers.
        feeds = [asyncio.create_task(follow), asyncio.create_task(self._listen())]
        for feed in feeds:
            feed.add_done_callback(lambda _feed: self._awake.set())
        try:
            await self._loop(feeds)
        finally:
            open_tasks = [*feeds, *self._tasks, *self._computations]
            for task in open_tasks:
                task.cancel()
            await asyncio.gather(*open_tasks, return_exceptions=True)
            if self._journal is not None:
                self._journal.close()

    async def _listen(self) -> None:
        if self._reports is not None:
            await self._connect(self._reports.connection_changed)
            return
        await self._connect(lambda connected: self.inbox.put(BusConnectionChanged(connected)))
        for kind in FRAME_KINDS:
            await self.bus.subscribe_batches(self.subjects.all_of(kind), self.inbox.offer_all)

    def stop(self) -> None:
        """Request an orderly shutdown; idempotent."""
        if not self._stopping:
            self._stopping = True
            self.inbox.put(ShutdownRequested())

    async def _loop(self, feeds: list[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            for feed in feeds:
                if feed.done():
                    feed.result()  # an exception ends the agent with its reason
            if self._stopping:
                deadline = deadline or loop.time() + SHUTDOWN_TIMEOUT_S
                if self._has_resigned():
                    return
                if loop.time() >= deadline:
                    self._log.warning("shutdown_incomplete", waits_for=sorted(task.get_name() for task in self._tasks))
                    return
            began = loop.time()
            self._turns.turn(self.clock.now_ms())
            self._on_turn(loop.time() - began)
            # Frames that arrive within the spacing are handled in one turn. With a full batch waiting, a delay gains
            # nothing.
            spacing_s = 0.0 if self.inbox.waiting >= self._knobs.batch_max else self._knobs.turn_spacing_ms / 1000
            await asyncio.sleep(max(0.0, spacing_s - (loop.time() - began)))
            if not self.inbox and not (self._stopping and self._has_resigned()):
                await self._sleep(loop, deadline)

    async def _sleep(self, loop: asyncio.AbstractEventLoop, deadline: float | None) -> None:
        """Sleep until something arrives or the core's next wake-up is due."""
        self._awake.clear()
        wake_ms = self.controller.next_wake()
        delays = [] if wake_ms is None else [max(0, wake_ms - self.clock.now_ms()) / 1000]
        if deadline is not None:
            delays.append(max(0.0, deadline - loop.time()))
        timer = loop.call_later(min(delays), self._awake.set) if delays else None
        await self._awake.wait()
        if timer is not None:
            timer.cancel()

    def _has_resigned(self) -> bool:
        """Return True if the leadership is given back and no effect is open; frames arrive for ever."""
        resigned = self.controller.state.leadership.phase == "resigned"
        return resigned and not self._tasks and not self.inbox.has_events

    def _spawn(self, effect: AnyEffect, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine, name=type(effect).__name__)
        tasks = self._computations if isinstance(effect, FitForecast | SolveAllocation) else self._tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _task: self._awake.set())
