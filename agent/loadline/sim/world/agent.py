"""An agent's process in virtual time: the production turns, effects and registry on a virtual bus and store.

The timeline replaces the event loop: a turn is due when input arrives or the core requests a wake-up, and never less
than ``turn_spacing_ms`` after the previous one.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from loadline.core.controller import Controller
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import AnyEvent, BusConnectionChanged, ShutdownRequested, StoreConnectionChanged
from loadline.ports import Fitter, Journal
from loadline.runtime.announcements import AnnounceRequests
from loadline.runtime.effects import follow_nothing
from loadline.runtime.feeds import KeyRouter
from loadline.runtime.inbox import Inbox
from loadline.runtime.registry import RegistryTranslator
from loadline.runtime.reports import Reports
from loadline.runtime.turns import FRAME_KINDS, Turns
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.fitter import InlineFitter
from loadline.sim.world.store import StoreConnection
from loadline.sim.world.tasks import VirtualTask, sleep
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.wire.codec import Rejected
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects

FRAME_BYTES_MAX = 262_144
BATCH_MAX = 512
INBOX_FRAMES_MAX = 65_536
# Number of tasks at which finished ones are removed; tasks do not signal their end.
_TASKS_MAX = 64


class VirtualClock:
    """Clock of a process, in Unix ms: it is off by ``skew_ms`` at first, drifts by ``drift`` and never goes back."""

    def __init__(self, timeline: Timeline, skew_ms: float = 0.0, drift: float = 0.0) -> None:
        self._timeline = timeline
        self._skew_ms = skew_ms
        self._rate = 1.0 + drift

    def now_ms(self) -> int:
        """Return the current time."""
        return START_MS + int(self._timeline.now_ms * self._rate + self._skew_ms)

    def jump(self, by_ms: float) -> None:
        """Jump forward."""
        self._skew_ms += by_ms

    def virtual_ms(self, now_ms: int) -> float:
        """Return the virtual time at which this clock shows a time."""
        return (now_ms - START_MS - self._skew_ms) / self._rate


class NullLog:
    """Log that drops everything; an exception still ends the simulation."""

    def info(self, event: str, **fields: Any) -> None:
        """Drop the entry."""

    def warning(self, event: str, **fields: Any) -> None:
        """Drop the entry."""

    def error(self, event: str, **fields: Any) -> None:
        """Drop the entry."""

    def exception(self, event: str, **fields: Any) -> None:
        """Raise the exception that is being handled."""
        del event, fields
        raise  # noqa: PLE0704 - called from within an except clause


class TurnObserver:
    """Observer of an agent's turns and effects; does nothing by default."""

    def before_turn(self, agent: "SimulatedAgent", events: Sequence[AnyEvent], now: int) -> None:
        """Observe the events before a turn; ``now`` is the time of the agent's clock."""

    def after_turn(
        self, agent: "SimulatedAgent", events: Sequence[AnyEvent], effects: Sequence[AnyEffect], now: int
    ) -> None:
        """Observe the effects of a turn before they are performed."""

    def before_effect(self, agent: "SimulatedAgent", effect: AnyEffect) -> None:
        """Observe an effect before it is performed; an agent killed now never performs it."""

    def after_effect(self, agent: "SimulatedAgent", effect: AnyEffect) -> None:
        """Observe an effect whose result waits for the next turn; an agent killed now loses the result."""


class _ObservedController(Controller):
    """Controller that shows every turn to an observer."""

    def __init__(self, settings: Settings, agent: "SimulatedAgent", observer: TurnObserver) -> None:
        super().__init__(settings)
        self._agent = agent
        self._observer = observer

    def handle(self, events: Sequence[AnyEvent], now: int) -> list[AnyEffect]:
        """Handle events between two calls of the observer."""
        self._observer.before_turn(self._agent, events, now)
        effects = super().handle(events, now)
        self._observer.after_turn(self._agent, events, effects, now)
        return effects


class SimulatedAgent:
    """One lifetime of an agent.

    Args:
        timeline: Virtual time.
        settings: Settings of its controller.
        bus: Its connection to the bus.
        store: Its connection to the store.
        clock: Its clock; None: virtual time.
        journal: Journal of its turns, if any.
        turn_spacing_ms: Minimum time between two turns.
        observer: Observer of every turn and every effect.
        router: Shards by key, if the agents share the models; ``settings`` are then those of ``shard``.
        shard: Number of the shard.
        fitter: Its forecasts and allocations; None: those of this process.
    """

    def __init__(
        self,
        timeline: Timeline,
        settings: Settings,
        bus: BusConnection,
        store: StoreConnection,
        *,
        clock: VirtualClock | None = None,
        journal: Journal | None = None,
        turn_spacing_ms: float = 2.0,
        observer: TurnObserver | None = None,
        router: KeyRouter | None = None,
        shard: int = 0,
        fitter: Fitter | None = None,
    ) -> None:
        self.name = settings.agent
        self.controller = Controller(settings) if observer is None else _ObservedController(settings, self, observer)
        self.clock = clock or VirtualClock(timeline)
        self.alive = True
        self.bus, self.store, self.journal = bus, store, journal
        self.rejected: dict[str, int] = {}
        """Rejected frames and records by reason."""
        self._timeline = timeline
        self._spacing_ms = turn_spacing_ms
        self._observer = observer
        self._suspended_until_ms, self._last_turn_ms = 0.0, -turn_spacing_ms
        self._due_ms: float | None = None
        subjects, keys = Subjects("loadline"), Keys("default")
        self.inbox = Inbox(INBOX_FRAMES_MAX, self._wake, subjects)
        self._reports = None if router is None else Reports(bus, subjects, self.inbox.offer_all, self.inbox.put)
        self.turns = Turns(
            controller=self.controller,
            bus=bus,
            store=store,
            fitter=fitter or InlineFitter(),
            journal=journal,
            subjects=subjects,
            keys=keys,
            inbox=self.inbox,
            spawn=self._perform,
            log=NullLog(),
            batch_max=BATCH_MAX,
            frame_bytes_max=FRAME_BYTES_MAX,
            version="sim",
            on_rejected=self._count_rejected,
            follow=follow_nothing if self._reports is None else self._reports.follow,
        )
        shared = router is not None
        registry = RegistryTranslator(keys, settings.scope, self.inbox.put, self._count_rejected, shared=shared)
        on_snapshot, on_changes = registry.on_snapshot, registry.on_changes
        follow = store.follow(
            keys.prefix,
            on_snapshot
            if router is None
            else lambda found: on_snapshot(replace(found, entries=router.split(found.entries)[shard])),
            on_changes if router is None else lambda found: on_changes(router.split(found)[shard]),
            lambda connected: self.inbox.put(StoreConnectionChanged(connected)),
        )
        self._tasks = {VirtualTask(self._listen(subjects)): None, VirtualTask(follow): None}
        self._wake()

    def suspend(self, until_ms: float) -> None:
        """Suspend the process, as with its host; input waits for it.

        Calls in flight are suspended as well; a suspension may fall between a turn and its effects.
        """
        self._suspended_until_ms = max(self._suspended_until_ms, until_ms)

    def wake(self) -> None:
        """Take a turn soon, though nothing has arrived: the clock has changed."""
        self._wake()

    @property
    def suspended(self) -> bool:
        """True while the process is suspended."""
        return self._suspended_until_ms > self._timeline.now_ms

    def stop(self) -> None:
        """Request a graceful shutdown."""
        self.inbox.put(ShutdownRequested())

    def kill(self) -> None:
        """Kill the process at once: unfinished work stays unfinished."""
        self.alive = False
        for task in self._tasks:
            task.kill()
        self._tasks.clear()
        VirtualTask(self.bus.close())
        VirtualTask(self.store.close())

    async def _answer_announce_requests(self, subjects: Subjects) -> None:
        requests = AnnounceRequests(
            lambda: [self] if self.controller.leading else [],
            shared=self._reports is not None,
            call_later=lambda wait_s, do: self._timeline.call_later(wait_s * 1_000, do),
        )

        async def answer(payload: bytes) -> bytes | None:
            while self.suspended:
                await sleep(self._timeline, self._suspended_until_ms - self._timeline.now_ms)
            return requests.answer(payload) if self.alive else None

        await self.bus.answer(subjects.api("announce"), answer)

    async def _listen(self, subjects: Subjects) -> None:
        await self._answer_announce_requests(subjects)
        if self._reports is not None:
            await self.bus.connect(self._reports.connection_changed)
            return
        await self.bus.connect(lambda connected: self.inbox.put(BusConnectionChanged(connected)))
        for kind in FRAME_KINDS:
            await self.bus.subscribe_batches(subjects.all_of(kind), self.inbox.offer_all)

    def _perform(self, effect: AnyEffect, coroutine: Coroutine[object, object, None]) -> None:
        observer = self._observer
        if observer is not None:
            observer.before_effect(self, effect)
        if not self.alive:
            coroutine.close()
            return
        task = VirtualTask(
            coroutine,
            None if observer is None else lambda: observer.after_effect(self, effect),
            self._defer_while_suspended,
        )
        if not task.done:
            self._tasks[task] = None

    def _defer_while_suspended(self, step: Callable[[], None]) -> bool:
        """Return True if the process is suspended; the step then runs when it resumes."""
        if self.suspended:
            self._timeline.call_at(self._suspended_until_ms, step)
        return self.suspended

    def _count_rejected(self, rejected: Rejected) -> None:
        self.rejected[rejected.reason] = self.rejected.get(rejected.reason, 0) + 1

    def _wake(self) -> None:
        self._schedule_turn(self._timeline.now_ms)

    def _schedule_turn(self, at_ms: float) -> None:
        """Schedule a turn at a time, or as soon as the spacing allows, unless an earlier one is due."""
        at_ms = max(at_ms, self._timeline.now_ms, self._last_turn_ms + self._spacing_ms)
        if self._due_ms is None or at_ms < self._due_ms:
            self._due_ms = at_ms
            self._timeline.call_at(at_ms, lambda: self._turn(at_ms))

    def _turn(self, at_ms: float) -> None:
        if at_ms != self._due_ms or not self.alive:
            return
        if self.suspended:
            self._due_ms = None
            self._schedule_turn(self._suspended_until_ms)
            return
        self._due_ms, self._last_turn_ms = None, self._timeline.now_ms
        self.turns.turn(self.clock.now_ms())
        self._after_turn()

    def _after_turn(self) -> None:
        if not self.alive:
            return  # killed during the turn
        wake_ms = self.controller.next_wake()
        if self.inbox:
            self._wake()
        if wake_ms is not None:
            # Slightly late, as a sum of floats may fall just below the requested time.
            self._schedule_turn(self.clock.virtual_ms(wake_ms) + 0.01)
        if len(self._tasks) > _TASKS_MAX:
            self._tasks = {task: None for task in self._tasks if not task.done}
