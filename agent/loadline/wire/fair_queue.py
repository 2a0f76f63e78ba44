"""Bounded queue with fair shares, for input of senders of which one may flood."""

from collections import OrderedDict, deque
from typing import Any, Final, Generic, TypeVar

ROUNDS_MAX: Final = 64
"""Messages of one sender in a batch: a turn of 64 takes less than a millisecond."""

T = TypeVar("T", bound=tuple[Any, ...])


class FairQueue(Generic[T]):
    """Queue of messages that serves its senders in turn and keeps the messages of each in order.

    A message that would exceed a bound replaces the oldest one of its sender, unless that sender has less than its
    share (the bound divided by the number of senders). It then replaces the oldest message of the longest queue, so a
    flood drops its own messages.

    Args:
        messages_max: Maximum number of messages: tuples whose last element is the payload.
        bytes_max: Maximum size of all payloads.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.dropped = 0
        self.waiting = 0
        """Number of messages."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._bytes = 0
        # An OrderedDict, because popping the first key of a dict gets slower with every key removed before it.
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        # The longest queue, as of its last message: pops shorten all queues alike.
        self._longest: deque[T] = deque()
        self._longest_sender = ""

    def put(self, sender: str, message: T) -> None:
        """Add a message, in O(1). One that is larger than ``bytes_max`` is dropped."""
        size = len(message[-1])
        total = self._bytes + size
        if self.waiting >= self._messages_max or total > self._bytes_max:
            if size > self._bytes_max:
                self.dropped += 1
                return
            while self.waiting >= self._messages_max or self._bytes + size > self._bytes_max:
                self._drop(sender)
            total = self._bytes + size
        queue = self._queues.get(sender)
        if queue is None:
            self._queues[sender] = deque((message,))
        else:
            queue.append(message)
            if len(queue) > len(self._longest):
                self._longest, self._longest_sender = queue, sender
        self.waiting += 1
        self._bytes = total

    def pop_batch(self, messages_max: int, bytes_max: int) -> list[T]:
        """Remove and return messages of all senders in turn, at most ``ROUNDS_MAX`` of each.

        Args:
            messages_max: Maximum number.
            bytes_max: Size of the payloads from which on no further message is added.
        """
        messages: list[T] = []
        if self.waiting == len(self._queues) <= messages_max and self._bytes <= bytes_max:
            for queue in self._queues.values():  # the usual case: one of each
                messages += queue
            self._queues.clear()
            self._longest = deque()
            self.waiting = self._bytes = 0
            return messages
        queues, size = self._queues, 0
        popitem, append = queues.popitem, messages.append
        for _ in range(ROUNDS_MAX):
            for _ in range(min(len(queues), messages_max - len(messages))):
                sender, queue = popitem(last=False)
                message = queue.popleft()
                append(message)
                size += len(message[-1])
                if queue:
                    queues[sender] = queue
                if size >= bytes_max:
                    break
            if not queues or len(messages) >= messages_max or size >= bytes_max:
                break
        self.waiting -= len(messages)
        self._bytes -= size
        return messages

    def _drop(self, sender: str) -> None:
        """Drop the oldest message of ``sender``, or of the longest queue if this sender has less than its share."""
        queue = self._queues.get(sender)
        if queue is None or len(queue) < self.waiting // (len(self._queues) + 1):
            sender = self._longest_sender if self._longest else next(iter(self._queues))
            queue = self._queues[sender]
        dropped = queue.popleft()
        if not queue:
            del self._queues[sender]
        self.dropped += 1
        self.waiting -= 1
        self._bytes -= len(dropped[-1])
