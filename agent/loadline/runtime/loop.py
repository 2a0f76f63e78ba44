"""The agent's one loop. Everything else only puts something into the inbox."""

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from loadline.config import RuntimeKnobs
from loadline.core.controller import Controller
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import BusConnectionChanged, ShutdownRequested, StoreConnectionChanged
from loadline.ports import Bus, Clock, Fitter, Journal, Store
from loadline.runtime.inbox import Inbox
from loadline.runtime.registry import RegistryTranslator
from loadline.runtime.turns import FRAME_KINDS, Turns
from loadline.wire.codec import Rejected
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects

SHUTDOWN_TIMEOUT_S = 5.0
"""A stop waits this long for a commit under way and for the lease to be given back."""


class Runtime:
    """Runs a controller on a clock, a bus, a store and a journal.

    Args:
        controller: The core.
        clock: Gives every turn its time.
        bus: Brings frames; carries announcements and commands.
        store: Brings the registry; takes decisions.
        fitter: Makes forecasts.
        journal: Takes every turn, if there is one.
        root: First tokens of all subjects.
        namespace: Namespace of all keys.
        knobs: Pace and bounds of the loop.
        frame_bytes_max: Larger frames are refused.
        version: Written into the journal.
        on_turn: Told how long (s) each turn took; the watchdog and the metrics hang on it.
        on_rejected: Told of every frame, and every record in the registry, that was refused.
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
    ) -> None:
        self.controller = controller
        self.clock = clock
        self.bus = bus
        self.subjects = Subjects(root)
        self._store = store
        self._journal = journal
        self._knobs = knobs
        self._on_turn = on_turn
        self._on_rejected = on_rejected
        self._keys = Keys(namespace)
        self._awake = asyncio.Event()
        self.inbox = Inbox(knobs.inbox_frames_max, self._awake.set)
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
            log=structlog.get_logger("loadline"),
            batch_max=knobs.batch_max,
            frame_bytes_max=frame_bytes_max,
            version=version,
            on_rejected=on_rejected,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def turns(self) -> int:
        """Turns so far."""
        return self._turns.count

    @property
    def frames(self) -> int:
        """Frames that were taken so far."""
        return self._turns.frames

    async def run(self) -> None:
        """Run until ``stop``; comes back when everything is handed over, or after ``SHUTDOWN_TIMEOUT_S``."""
        registry = RegistryTranslator(self._keys, self.controller.settings.scope, self.inbox.put, self._on_rejected)
        follow = self._store.follow(
            self._keys.prefix,
            registry.on_snapshot,
            registry.on_changes,
            lambda connected: self.inbox.put(StoreConnectionChanged(connected)),
        )
        # Beside the loop, which turns, and stops when it is told to, while nobody answers.
        feeds = [asyncio.create_task(follow), asyncio.create_task(self._listen())]
        for feed in feeds:
            feed.add_done_callback(lambda _feed: self._awake.set())
        try:
            await self._loop(feeds)
        finally:
            open_tasks = [*feeds, *self._tasks]
            for task in open_tasks:
                task.cancel()
            await asyncio.gather(*open_tasks, return_exceptions=True)
            if self._journal is not None:
                self._journal.close()

    async def _listen(self) -> None:
        await self.bus.connect(lambda connected: self.inbox.put(BusConnectionChanged(connected)))
        for kind in FRAME_KINDS:
            await self.bus.subscribe(self.subjects.all_of(kind), self.inbox.offer)

    def stop(self) -> None:
        """Ask for an orderly end; more than once does no harm."""
        if not self._stopping:
            self._stopping = True
            self.inbox.put(ShutdownRequested())

    async def _loop(self, feeds: list[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            for feed in feeds:
                if feed.done():
                    feed.result()  # whatever it raised ends the agent with its reason
            if self._stopping:
                deadline = deadline or loop.time() + SHUTDOWN_TIMEOUT_S
                if self._handed_over() or loop.time() >= deadline:
                    return
            began = loop.time()
            self._turns.turn(self.clock.now_ms())
            self._on_turn(loop.time() - began)
            # The agent runs at its own pace: what arrives within the spacing is taken together. Where a full batch is
            # waiting, there is nothing to be gained by that.
            spacing_s = 0.0 if self.inbox.waiting >= self._knobs.batch_max else self._knobs.turn_spacing_ms / 1000
            await asyncio.sleep(max(0.0, spacing_s - (loop.time() - began)))
            if not self.inbox:
                await self._sleep(loop, deadline)

    async def _sleep(self, loop: asyncio.AbstractEventLoop, deadline: float | None) -> None:
        """Until something arrives or the core wants to be woken."""
        self._awake.clear()
        wake_ms = self.controller.next_wake()
        delays = [] if wake_ms is None else [max(0, wake_ms - self.clock.now_ms()) / 1000]
        if deadline is not None:
            delays.append(max(0.0, deadline - loop.time()))
        timer = loop.call_later(min(delays), self._awake.set) if delays else None
        await self._awake.wait()
        if timer is not None:
            timer.cancel()

    def _handed_over(self) -> bool:
        return self.controller.state.leadership.phase == "resigned" and not self._tasks and not self.inbox

    def _spawn(self, effect: AnyEffect, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine, name=type(effect).__name__)
        self._tasks.add(task)
        task.add_done_callback(self._performed)

    def _performed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._awake.set()
