"""Inbox of the next turn: frames, bounded, and the agent's own events."""

from collections import OrderedDict, deque
from collections.abc import Callable

from loadline.core.vocabulary.events import AnyEvent


class Inbox:
    """Queue of frames by subject, and of events.

    When ``frames_max`` frames wait, a new frame replaces the oldest of the same subject, as only the newest load sample
    counts; without one, the oldest frame of the first subject is dropped. Events are results of effects and changes of
    the registry; they are never dropped.

    Args:
        frames_max: Maximum number of waiting frames.
        wake: Called when something arrives.
    """

    def __init__(self, frames_max: int, wake: Callable[[], None]) -> None:
        self.dropped = 0
        self.waiting = 0
        """Number of waiting frames."""
        self._frames_max = frames_max
        self._wake = wake
        # An OrderedDict, because popping the first key of a dict gets slower with every key removed before it.
        self._frames: OrderedDict[str, deque[bytes]] = OrderedDict()
        self._events: list[AnyEvent] = []

    def offer(self, subject: str, payload: bytes) -> None:
        """Queue a frame, in O(1): the bus's reader calls this."""
        queue = self._frames.get(subject)
        if self.waiting >= self._frames_max:
            self._drop_oldest(queue)
            queue = self._frames.get(subject)
        if queue is None:
            self._frames[subject] = deque((payload,))
        else:
            queue.append(payload)
        self.waiting += 1
        self._wake()

    def put(self, event: AnyEvent) -> None:
        """Queue an event."""
        self._events.append(event)
        self._wake()

    def pop_batch(self, batch_max: int) -> tuple[list[AnyEvent], list[tuple[str, bytes]]]:
        """Remove and return all events and at most ``batch_max`` frames; frames of a subject keep their order."""
        events, self._events = self._events, []
        frames: list[tuple[str, bytes]] = []
        while self._frames and len(frames) < batch_max:
            subject, queue = self._frames.popitem(last=False)
            room = batch_max - len(frames)
            if len(queue) == 1:
                frames.append((subject, queue[0]))  # the usual case, much faster
            elif len(queue) > room:
                frames += [(subject, queue.popleft()) for _ in range(room)]
                self._frames[subject] = queue
            else:
                frames += [(subject, payload) for payload in queue]
        self.waiting -= len(frames)
        return events, frames

    def __bool__(self) -> bool:
        """Return True if a frame or an event waits."""
        return bool(self._frames or self._events)

    def _drop_oldest(self, queue: deque[bytes] | None) -> None:
        self.dropped += 1
        self.waiting -= 1
        if queue:
            queue.popleft()
            return
        subject, oldest = next(iter(self._frames.items()))
        oldest.popleft()
        if not oldest:
            del self._frames[subject]
