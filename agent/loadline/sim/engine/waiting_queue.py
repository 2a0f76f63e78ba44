"""The engine's queue: first come first served, with preempted requests first."""

from collections import OrderedDict

from loadline.sim.engine.request import Sequence


class WaitingQueue:
    """Waiting sequences by request id, with the totals of a load sample."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self.size = 0
        self.prefill_tokens = 0  # to compute
        self.cached_tokens = 0  # of sequences that come with their cache

    @property
    def waiting(self) -> list[Sequence]:
        """All waiting sequences, the next one first."""
        return list(self._waiting.values())

    @property
    def head(self) -> Sequence:
        """Next sequence; the queue must not be empty."""
        return next(iter(self._waiting.values()))

    def append(self, sequence: Sequence) -> None:
        """Add a sequence at the end."""
        self._waiting[sequence.request.request_id] = sequence
        self._account(sequence, 1)

    def prepend(self, sequence: Sequence) -> None:
        """Add a sequence at the head."""
        self.append(sequence)
        self._waiting.move_to_end(sequence.request.request_id, last=False)

    def remove(self, sequence: Sequence) -> bool:
        """Remove a sequence; False when it is not in the queue."""
        if self._waiting.get(sequence.request.request_id) is not sequence:
            return False
        del self._waiting[sequence.request.request_id]
        self._account(sequence, -1)
        return True

    def _account(self, sequence: Sequence, sign: int) -> None:
        self.size += sign
        if sequence.cached:
            self.cached_tokens += sign * sequence.kv_tokens
        else:
            self.prefill_tokens += sign * sequence.prefill_tokens
