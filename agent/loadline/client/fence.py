"""Fences, which identify decisions and commands that are older than one already seen. Pure."""

from enum import Enum, auto

from loadline.wire.messages import ScalingDecision


class Freshness(Enum):
    """Classification of an announced decision against the newest one of its model."""

    NEW = auto()
    REPEATED = auto()
    STALE = auto()
    EXPIRED = auto()


class DecisionFence:
    """Highest (epoch, sequence) seen of each model. Decisions of a former leader are stale."""

    def __init__(self) -> None:
        self._highest: dict[str, tuple[int, int]] = {}

    def classify(self, decision: ScalingDecision) -> Freshness:
        """Classify a decision, and record its (epoch, sequence) if it is the highest."""
        number = (decision.epoch, decision.sequence)
        highest = self._highest.get(decision.model)
        if highest is not None and number < highest:
            return Freshness.STALE
        if number == highest:
            return Freshness.REPEATED
        self._highest[decision.model] = number
        return Freshness.NEW if decision.ttl_ms > 0 else Freshness.EXPIRED

    def is_newest(self, decision: ScalingDecision) -> bool:
        """Return True if no newer decision of the model was seen."""
        return self._highest.get(decision.model) == (decision.epoch, decision.sequence)

    def highest(self, model: str) -> tuple[int, int]:
        """Return the highest (epoch, sequence) seen of a model; (0, 0) if none was seen."""
        return self._highest.get(model, (0, 0))


class EpochFence:
    """Highest epoch that one incarnation of a worker has seen in commands of one kind."""

    def __init__(self) -> None:
        self.highest = 0

    def admit(self, epoch: int) -> bool:
        """Record the epoch and return True, or return False if a higher epoch was seen."""
        if epoch < self.highest:
            return False
        self.highest = epoch
        return True
