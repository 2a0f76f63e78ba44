"""What may still be carried out: never what is older than what was seen. Pure."""

from enum import Enum, auto

from loadline.wire.messages import ScalingDecision


class Freshness(Enum):
    """What an announcement is to a scaler."""

    NEW = auto()
    REPEATED = auto()
    STALE = auto()
    EXPIRED = auto()


class DecisionFence:
    """The highest (epoch, sequence) of each model. A leader that lost its term cannot be obeyed any more."""

    def __init__(self) -> None:
        self._highest: dict[str, tuple[int, int]] = {}

    def judge(self, decision: ScalingDecision) -> Freshness:
        """Compare with what was seen, and remember it when it is newer."""
        number = (decision.epoch, decision.sequence)
        highest = self._highest.get(decision.model)
        if highest is not None and number < highest:
            return Freshness.STALE
        if number == highest:
            return Freshness.REPEATED
        self._highest[decision.model] = number
        return Freshness.NEW if decision.ttl_ms > 0 else Freshness.EXPIRED

    def is_newest(self, decision: ScalingDecision) -> bool:
        """Whether nothing newer of the model was seen."""
        return self._highest.get(decision.model) == (decision.epoch, decision.sequence)

    def highest(self, model: str) -> tuple[int, int]:
        """The highest (epoch, sequence) of a model; (0, 0) where none was seen."""
        return self._highest.get(model, (0, 0))


class EpochFence:
    """The highest term of a leader that one life of a worker has heard of, by one kind of command."""

    def __init__(self) -> None:
        self.highest = 0

    def admit(self, epoch: int) -> bool:
        """Whether a command of that term may be obeyed; remembers the term if so."""
        if epoch < self.highest:
            return False
        self.highest = epoch
        return True
