"""Inbox of the next turn: frames, bounded and shared fairly, and the agent's own events."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from loadline.core.vocabulary.events import AnyEvent
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import Frames
from loadline.wire.fair_queue import FairQueue
from loadline.wire.subjects import Subjects

FRAME_BYTES_MAX: Final = 67_108_864
"""Size of all waiting frames."""
BATCH_BYTES_MAX: Final = 1_048_576
"""Size of the frames of one turn, from which on no more are added: about 4,000 samples."""
UNKNOWN_RATIO: Final = 8
"""Unknown senders share an eighth of the inbox and of each batch."""

_WORKER_KINDS: Final = frozenset({"drained", "migration"})
"""Kinds of reports of workers beside their load. Without entries of their own, a worker takes 0.4 KB less."""

WorkerNames = tuple[str, str, str]
"""Names of a worker's model, of its pool, and its own."""


class Inbox:
    """Queue of frames and of events.

    Senders share the frames fairly, so that one that floods delays no other. A sender is a subject that is known: that
    of a worker in the core's fleet, or one of which the core has accepted a frame. All others share one queue for each
    kind, as a client can invent any number of subjects, and register any number of workers. When too many frames wait,
    a new one replaces the oldest of the senders with the most, as only the newest load sample counts. Events are
    results of effects and changes of the registry; they are never dropped.

    Args:
        frames_max: Maximum number of waiting frames.
        wake: Called with each event, and with a frame that finds none of its kind waiting.
        subjects: Subjects of the agent's root.
    """

    def __init__(self, frames_max: int, wake: Callable[[], None], subjects: Subjects) -> None:
        self._wake = wake
        self._subjects = subjects
        self._kind_at = len(subjects.prefix) + 1
        unknown_max = max(1, frames_max // UNKNOWN_RATIO)
        self._frames: FairQueue[bytes] = FairQueue(frames_max, FRAME_BYTES_MAX, len)
        self._unknown: FairQueue[tuple[str, bytes]] = FairQueue(
            unknown_max, FRAME_BYTES_MAX // UNKNOWN_RATIO, lambda frame: len(frame[1])
        )
        self._load_prefix = subjects.all_of("load").removesuffix(">")
        self._workers: dict[str, WorkerNames] = {}
        """Worker that reports its load under each subject. Those of its other reports follow from it, except that a
        worker that moves keeps the subject of its drain reports."""
        self._homes: dict[WorkerNames, str] = {}
        """Pools that started the workers which have moved: their drain reports go to the scalers of these."""
        self._accepted: OrderedDict[str, None] = OrderedDict()
        self._accepted_max = frames_max
        self._events: list[AnyEvent] = []

    @property
    def dropped(self) -> int:
        """Number of dropped frames."""
        return self._frames.dropped + self._unknown.dropped

    @property
    def waiting(self) -> int:
        """Number of waiting frames of known senders."""
        return self._frames.waiting

    @property
    def has_events(self) -> bool:
        """True if an event waits."""
        return bool(self._events)

    def offer(self, subject: str, payload: bytes) -> None:
        """Queue a frame, in O(1)."""
        if subject in self._workers or self._is_known(subject):
            self._frames.put(subject, payload)
            waiting = self._frames.waiting
        else:
            self._unknown.put(subject[self._kind_at : subject.find(".", self._kind_at)], (subject, payload))
            waiting = self._unknown.waiting
        if waiting == 1:  # the loop does not sleep while more wait
            self._wake()

    def offer_all(self, frames: Frames) -> None:
        """Queue frames that were read together: the bus's reader calls this."""
        workers = self._workers
        if len([frame for frame in frames if frame[0] in workers]) < len(frames):
            for subject, payload in frames:
                self.offer(subject, payload)
            return
        waited = self._frames.waiting
        self._frames.put_all(frames)
        if not waited and self._frames.waiting:  # the loop does not sleep while more wait
            self._wake()

    def put(self, event: AnyEvent) -> None:
        """Queue an event."""
        self._events.append(event)
        self._wake()

    def accept(self, subject: str) -> None:
        """Count the sender of a subject as known, because the core has accepted a frame of it."""
        self._accepted[subject] = None
        if len(self._accepted) > self._accepted_max:
            self._accepted.popitem(last=False)

    def set_workers(self, workers: Iterable[WorkerRecord]) -> None:
        """Replace the known workers by those of the core's fleet."""
        self._workers.clear()
        self._homes.clear()
        for record in workers:
            self.add_worker(record)

    def add_worker(self, record: WorkerRecord) -> None:
        """Count a worker as known, because the core has taken it into its fleet."""
        names = record.names
        self._forget(names)  # its home may be another one now
        if record.home != record.pool:
            self._homes[names] = record.home
        self._workers[self._subjects.load(*names)] = names
        if record.home != record.pool:
            self._workers[self._subjects.drained(record.model, record.home, record.worker)] = names

    def remove_worker(self, names: WorkerNames, *, draining: bool) -> None:
        """Count a worker whose key is gone as unknown, unless it is ``draining``: it reports until it is empty."""
        for subject in self._subjects_of(*names) if draining else ():
            self.accept(subject)  # bounded, as nothing tells that it has left
        self._forget(names)

    def pop_batch(self, batch_max: int) -> tuple[list[AnyEvent], list[tuple[str, bytes]]]:
        """Remove and return all events and at most ``batch_max`` frames; frames of a subject keep their order."""
        events, self._events = self._events, []
        reserved = min(self._unknown.waiting, batch_max // UNKNOWN_RATIO)
        frames = self._frames.pop_batch(batch_max - reserved, BATCH_BYTES_MAX)
        if self._unknown.waiting and len(frames) < batch_max:
            room = min(batch_max - len(frames), max(1, batch_max // UNKNOWN_RATIO))
            frames += [frame for _, frame in self._unknown.pop_batch(room, BATCH_BYTES_MAX // UNKNOWN_RATIO)]
        return events, frames

    def __bool__(self) -> bool:
        """Return True if a frame or an event waits."""
        return bool(self._frames.waiting or self._unknown.waiting or self._events)

    def _is_known(self, subject: str) -> bool:
        """Return True if a subject without an entry of its own is that of a known sender."""
        kind, _, names = subject[self._kind_at :].partition(".")
        return subject in self._accepted or (kind in _WORKER_KINDS and self._load_prefix + names in self._workers)

    def _forget(self, names: WorkerNames) -> None:
        """Forget the subjects of a worker, except those under which it reports by now from another pool."""
        for subject in self._subjects_of(*names):
            if self._workers.get(subject) == names:
                del self._workers[subject]
        self._homes.pop(names, None)

    def _subjects_of(self, model: str, pool: str, worker: str) -> tuple[str, ...]:
        subjects, home = self._subjects, self._homes.get((model, pool, worker), pool)
        return (
            subjects.load(model, pool, worker),
            subjects.drained(model, home, worker),
            subjects.migration(model, pool, worker),
        )
