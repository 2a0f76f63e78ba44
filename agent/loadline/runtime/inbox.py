"""What waits for the next turn: frames, bounded, and events, which the agent itself brings about."""

from collections import OrderedDict, deque
from collections.abc import Callable

from loadline.core.vocabulary.events import AnyEvent


class Inbox:
    """Frames by subject, and events.

    When ``frames_max`` frames wait, the oldest of the same subject gives way to the new one: of a load sample only the
    newest counts. Events are results of our own effects and changes of the registry; they are never dropped.

    Args:
        frames_max: Most frames that may wait.
        wake: Called when something arrives.
    """

    def __init__(self, frames_max: int, wake: Callable[[], None]) -> None:
        self.dropped = 0
        self.waiting = 0
        """Frames that wait."""
        self._frames_max = frames_max
        self._wake = wake
        # Ordered, because taking the first key of a plain dict gets slower with every key that was removed before it.
        self._frames: OrderedDict[str, deque[bytes]] = OrderedDict()
        self._events: list[AnyEvent] = []

    def offer(self, subject: str, payload: bytes) -> None:
        """Take a frame; O(1), because it is called from the bus's reader."""
        queue = self._frames.get(subject)
        if self.waiting >= self._frames_max:
            self._give_way(queue)
            queue = self._frames.get(subject)
        if queue is None:
            self._frames[subject] = deque((payload,))
        else:
            queue.append(payload)
        self.waiting += 1
        self._wake()

    def put(self, event: AnyEvent) -> None:
        """Take an event."""
        self._events.append(event)
        self._wake()

    def take(self, batch_max: int) -> tuple[list[AnyEvent], list[tuple[str, bytes]]]:
        """All events, and at most ``batch_max`` frames: those of a subject stay in their order."""
        events, self._events = self._events, []
        frames: list[tuple[str, bytes]] = []
        while self._frames and len(frames) < batch_max:
            subject, queue = self._frames.popitem(last=False)
            room = batch_max - len(frames)
            if len(queue) == 1:
                frames.append((subject, queue[0]))  # as good as always, and much faster
            elif len(queue) > room:
                frames += [(subject, queue.popleft()) for _ in range(room)]
                self._frames[subject] = queue
            else:
                frames += [(subject, payload) for payload in queue]
        self.waiting -= len(frames)
        return events, frames

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._frames or self._events)

    def _give_way(self, queue: deque[bytes] | None) -> None:
        self.dropped += 1
        self.waiting -= 1
        if queue:
            queue.popleft()
            return
        subject, oldest = next(iter(self._frames.items()))
        oldest.popleft()
        if not oldest:
            del self._frames[subject]
