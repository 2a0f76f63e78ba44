"""Bounded queue with fair shares, for input of senders of which one may flood."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace
from typing import Final, Generic, TypeVar, cast

RUN_MAX: Final = 16
"""Messages of one sender in a row: they delay the next sender by less than 0.1 ms."""
ROUNDS_MAX: Final = 4
"""Runs of one sender in a batch: a turn of 64 messages takes less than a millisecond."""
_EXCESS_RATIO: Final = 16

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Queue of messages that serves its senders in turn and keeps the messages of each in order.

    When a bound is exceeded, the senders with the most messages, or bytes, lose their oldest messages, so a flood drops
    its own. They lose a sixteenth of the bound at once, because the search takes O(senders), or O(messages) for bytes.

    Args:
        messages_max: Maximum number of messages.
        bytes_max: Maximum size of all messages.
        size: Returns the size of a message in bytes.
    """

    def __init__(self, messages_max: int, bytes_max: int, size: Callable[[T], int]) -> None:
        self.dropped = 0
        self.waiting = 0
        """Number of messages."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._size = size
        self._bytes = 0
        # An OrderedDict, because popping the first key of a dict gets slower with every key removed before it. A single
        # message, the usual case, is there as it came, which takes 0.3 us less than a deque; a deque has several.
        self._queues: OrderedDict[str, deque[tuple[str, T]] | tuple[str, T]] = OrderedDict()

    def put(self, sender: str, message: T) -> None:
        """Add a message, in O(1) on average. One that is larger than ``bytes_max`` is dropped."""
        self.put_all(((sender, message),))

    def put_all(self, messages: Iterable[tuple[str, T]]) -> None:
        """Add messages with their senders, as ``put`` does. The bounds are checked when all are added."""
        queues, size_of, size_max = self._queues, self._size, self._bytes_max
        added = added_bytes = 0
        for message in messages:
            sender, content = message
            size = size_of(content)
            if size > size_max:
                self.dropped += 1
                continue
            queue = queues.get(sender)
            if queue is None:
                queues[sender] = message
            elif isinstance(queue, tuple):
                queues[sender] = deque((queue, message))
            else:
                queue.append(message)
            added += 1
            added_bytes += size
        self.waiting += added
        self._bytes += added_bytes
        if self.waiting > self._messages_max or self._bytes > size_max:
            self._drop_excess()

    def pop_batch(self, messages_max: int, bytes_max: int) -> list[tuple[str, T]]:
        """Remove and return messages of all senders in turn: runs of at most 16, and at most 64 of each.

        Args:
            messages_max: Maximum number.
            bytes_max: Size from which on no further message is added.

        Returns:
            Senders and their messages.
        """
        queues, messages, size = self._queues, list[tuple[str, T]](), 0
        if self.waiting == len(queues) <= messages_max and self._bytes <= bytes_max:  # a common case: one of each
            messages = cast("list[tuple[str, T]]", list(queues.values()))
            queues.clear()
            self.waiting = self._bytes = 0
            return messages
        for _ in range(ROUNDS_MAX):
            for _ in range(len(queues)):
                if len(messages) >= messages_max or size >= bytes_max:
                    break
                sender, queue = queues.popitem(last=False)
                if isinstance(queue, tuple):  # another common case, in half the time
                    messages.append(queue)
                    size += self._size(queue[1])
                    continue
                for _ in range(min(RUN_MAX, messages_max - len(messages), len(queue))):
                    messages.append(message := queue.popleft())
                    size += self._size(message[1])
                    if size >= bytes_max:
                        break
                if queue:
                    queues[sender] = queue if len(queue) > 1 else queue[0]
        self.waiting -= len(messages)
        self._bytes -= size
        return messages

    def _drop_excess(self) -> None:
        """Drop the oldest messages of the largest queues.

        The bound that is exceeded decides how queues are compared: one message of many bytes is no small queue.
        """
        by_bytes = self._bytes > self._bytes_max
        total, bound = (self._bytes, self._bytes_max) if by_bytes else (self.waiting, self._messages_max)
        excess = total - (bound - bound // _EXCESS_RATIO)
        largest: list[tuple[int, str]] = []
        for sender, queue in self._queues.items():
            messages = (queue,) if isinstance(queue, tuple) else queue
            largest.append((-(sum(self._size(one) for _, one in messages) if by_bytes else len(messages)), sender))
        heapify(largest)
        while excess > 0:
            minus_weight, sender = largest[0]
            size = self._drop_oldest(sender)
            weight = size if by_bytes else 1
            excess -= weight
            if minus_weight + weight < 0:
                heapreplace(largest, (minus_weight + weight, sender))
            else:
                heappop(largest)

    def _drop_oldest(self, sender: str) -> int:
        """Drop the oldest message of a sender, and return its size."""
        queue = self._queues[sender]
        if isinstance(queue, tuple):
            del self._queues[sender]
            size = self._size(queue[1])
        else:
            size = self._size(queue.popleft()[1])
            if len(queue) == 1:
                self._queues[sender] = queue[0]
        self.dropped += 1
        self.waiting -= 1
        self._bytes -= size
        return size
