"""The engine's queue: first come first served, and who was preempted goes first."""

from collections import OrderedDict

from loadline.sim.engine.request import Sequence


class WaitingQueue:
    """Waiting sequences by request id, with the sums that a load sample names."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self.prefill_tokens = 0  # to be computed
        self.cached_tokens = 0  # of those that come with their cache

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[Sequence]:
        """All that wait, the next one first."""
        return list(self._waiting.values())

    @property
    def head(self) -> Sequence:
        """Who is next; the queue must not be empty."""
        return next(iter(self._waiting.values()))

    def append(self, sequence: Sequence) -> None:
        """Let a sequence wait behind all others."""
        self._waiting[sequence.request.request_id] = sequence
        self._account(sequence, 1)

    def prepend(self, sequence: Sequence) -> None:
        """Let a sequence wait before all others."""
        self.append(sequence)
        self._waiting.move_to_end(sequence.request.request_id, last=False)

    def remove(self, sequence: Sequence) -> bool:
        """Take a sequence out; False when it does not wait here."""
        if self._waiting.get(sequence.request.request_id) is not sequence:
            return False
        del self._waiting[sequence.request.request_id]
        self._account(sequence, -1)
        return True

    def _account(self, sequence: Sequence, sign: int) -> None:
        if sequence.cached:
            self.cached_tokens += sign * sequence.kv_tokens
        else:
            self.prefill_tokens += sign * sequence.prefill_tokens
