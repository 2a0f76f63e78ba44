"""Bounded queue with fair shares, for input of senders of which one may flood."""

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heapreplace
from typing import Final, Generic, TypeVar

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
        # message, the usual case, is in a tuple, which takes 0.2 us less than a deque.
        self._queues: OrderedDict[str, deque[T] | tuple[T]] = OrderedDict()

    def put(self, sender: str, message: T) -> None:
        """Add a message, in O(1) on average. One that is larger than ``bytes_max`` is dropped."""
        queue = self._queues.get(sender)
        if queue is None:
            self._queues[sender] = (message,)
        elif isinstance(queue, tuple):
            self._queues[sender] = deque((queue[0], message))
        else:
            queue.append(message)
        self.waiting = waiting = self.waiting + 1
        self._bytes = size = self._bytes + self._size(message)
        if waiting > self._messages_max or size > self._bytes_max:
            self._drop_excess(sender)

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
            messages = [(sender, queue[0]) for sender, queue in queues.items()]
            queues.clear()
            self.waiting = self._bytes = 0
            return messages
        for _ in range(ROUNDS_MAX):
            for _ in range(len(queues)):
                if len(messages) >= messages_max or size >= bytes_max:
                    break
                sender, queue = queues.popitem(last=False)
                if isinstance(queue, tuple):  # another common case, in half the time
                    messages.append((sender, message := queue[0]))
                    size += self._size(message)
                    continue
                for _ in range(min(RUN_MAX, messages_max - len(messages), len(queue))):
                    message = queue.popleft()
                    messages.append((sender, message))
                    size += self._size(message)
                    if size >= bytes_max:
                        break
                if queue:
                    queues[sender] = queue
        self.waiting -= len(messages)
        self._bytes -= size
        return messages

    def _drop_excess(self, sender: str) -> None:
        """Drop the newest message of ``sender`` if it alone is too large, else the oldest of the largest queues.

        The bound that is exceeded decides how queues are compared: one message of many bytes is no small queue.
        """
        if self._size(self._queues[sender][-1]) > self._bytes_max:
            self._drop(sender, -1)
            return
        by_bytes = self._bytes > self._bytes_max
        total, bound = (self._bytes, self._bytes_max) if by_bytes else (self.waiting, self._messages_max)
        excess = total - (bound - bound // _EXCESS_RATIO)
        largest = [
            (-(sum(map(self._size, queue)) if by_bytes else len(queue)), sender)
            for sender, queue in self._queues.items()
        ]
        heapify(largest)
        while excess > 0:
            minus_weight, sender = largest[0]
            message = self._drop(sender, 0)
            weight = self._size(message) if by_bytes else 1
            excess -= weight
            if minus_weight + weight < 0:
                heapreplace(largest, (minus_weight + weight, sender))
            else:
                heappop(largest)

    def _drop(self, sender: str, position: int) -> T:
        """Drop the message of a sender at a position: 0 for the oldest, -1 for the newest."""
        queue = self._queues[sender]
        message = queue[position]
        if len(queue) == 1:
            del self._queues[sender]
        elif isinstance(queue, deque):
            del queue[position]
        self.dropped += 1
        self.waiting -= 1
        self._bytes -= self._size(message)
        return message
