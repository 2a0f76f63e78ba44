"""Fences, which identify decisions and commands that are older than, or do not know, one already seen. Pure."""

import math
from collections.abc import Collection
from enum import Enum, auto
from typing import Final, NamedTuple

from loadline.wire.messages import ScalingDecision

CHALLENGE_S: Final = 60.0
"""Time for which decisions of a lower epoch are stale: several times that of a lease, and of a message on its way."""
ASK_INTERVAL_S: Final = 5.0
"""Interval of the requests to the leader of a model with stale decisions: twelve in ``CHALLENGE_S``."""
ANSWERS_MIN: Final = 6
"""Answers within ``CHALLENGE_S`` that lower the fence: messages may be lost, and a partition may have ended."""


class Freshness(Enum):
    """Classification of an announced decision against the newest one of its model."""

    NEW = auto()
    REPEATED = auto()
    STALE = auto()
    EXPIRED = auto()


class _Challenge(NamedTuple):
    """Stale decisions of an epoch: the first one, and the times at which it and the last one came."""

    epoch: int
    sequence: int
    since_s: float
    last_s: float
    answers_s: tuple[float, ...] = ()
    """Times of the newest answers of a leader to requests of the current decision."""


class DecisionFence:
    """Highest (epoch, sequence) seen of each model. Decisions of a former leader are stale.

    A number that no leader has, as somebody forged it or etcd lost it, would block a model for ever. So a stale
    decision is new if one of its epoch was stale ``CHALLENGE_S`` before, its sequence is higher than then, and none of
    the highest number came in between. A former leader cannot have made it: it commits nothing after its lease's end.
    One whose etcd was replaced by a backup may, and so may a replay. So the caller also requests the current decisions
    of the models that ``to_ask`` returns. The leader of the highest number announces it then; it cannot be reached, or
    does not exist, if others have answered ``ANSWERS_MIN`` requests and no such announcement came. The
    requests go on every ``CHALLENGE_S`` afterwards: its announcement is new when it returns.

    All times are of one monotonic clock.
    """

    def __init__(self) -> None:
        self._highest: dict[str, tuple[int, int]] = {}
        self._challenges: dict[str, _Challenge] = {}
        self._asked_s: dict[str, float] = {}
        self._lowered: dict[str, tuple[int, int]] = {}
        """Number from which the fence of a model was lowered: its leader may have been unreachable only."""

    def classify(self, decision: ScalingDecision, now_s: float) -> Freshness:
        """Classify a decision, and record its (epoch, sequence) if it is the highest."""
        number = (decision.epoch, decision.sequence)
        highest = self._highest.get(decision.model)
        if highest is not None and number < highest and not self._is_of_leader(decision, now_s):
            return Freshness.STALE
        self._challenges.pop(decision.model, None)
        if number == highest:
            return Freshness.REPEATED
        if highest is not None and number < highest:
            self._lowered[decision.model] = max(highest, self._lowered.get(decision.model, highest))
        elif number >= self._lowered.get(decision.model, number):
            self._lowered.pop(decision.model, None)
        self._highest[decision.model] = number
        return Freshness.NEW if decision.ttl_ms > 0 else Freshness.EXPIRED

    def _is_of_leader(self, decision: ScalingDecision, now_s: float) -> bool:
        """Return True if a stale decision proves that the highest number is not of a leader."""
        challenge = self._challenges.get(decision.model)
        if challenge is None or challenge.epoch != decision.epoch:
            # Stale decisions of a higher epoch have precedence while they come, but may be forged, too.
            if challenge is None or challenge.epoch < decision.epoch or now_s - challenge.last_s >= CHALLENGE_S:
                self._challenges[decision.model] = _Challenge(decision.epoch, decision.sequence, now_s, now_s)
            return False
        self._challenges[decision.model] = challenge._replace(last_s=now_s)
        passed = decision.sequence > challenge.sequence and now_s - challenge.since_s >= CHALLENGE_S
        return passed and self._is_confirmed(challenge, now_s)

    @staticmethod
    def _is_confirmed(challenge: _Challenge, now_s: float) -> bool:
        """Return True if leaders have answered often enough of late, and the highest number was not announced."""
        return len(challenge.answers_s) == ANSWERS_MIN and now_s - challenge.answers_s[0] <= CHALLENGE_S

    def to_ask(self, now_s: float) -> tuple[str, ...]:
        """Return the models whose current decisions must be requested now, each with a request of its own.

        Report each answer of a leader with ``record_answer``.
        """
        due = tuple(model for model in self._unsure() if self._ask_at_s(model) <= now_s)
        self._asked_s.update(dict.fromkeys(due, now_s))
        return due

    def next_ask_s(self) -> float | None:
        """Return the time at which ``to_ask`` next returns a model, unless a stale decision comes; None: at none."""
        return min(map(self._ask_at_s, self._unsure()), default=None)

    def _unsure(self) -> dict[str, object]:
        return {**self._lowered, **self._challenges}

    def _ask_at_s(self, model: str) -> float:
        asked_s, challenge = self._asked_s.get(model, -math.inf), self._challenges.get(model)
        return asked_s + CHALLENGE_S if challenge is None else max(challenge.since_s, asked_s + ASK_INTERVAL_S)

    def record_answer(self, model: str, now_s: float) -> None:
        """Record that a leader of a model has answered the last request, and announces the model's decision."""
        challenge = self._challenges.get(model)
        if challenge is not None and challenge.since_s <= self._asked_s.get(model, -math.inf):
            answers_s = (*challenge.answers_s, now_s)[-ANSWERS_MIN:]
            self._challenges[model] = challenge._replace(answers_s=answers_s)

    def is_newest(self, decision: ScalingDecision) -> bool:
        """Return True if no newer decision of the model was seen."""
        return self._highest.get(decision.model) == (decision.epoch, decision.sequence)

    def highest(self, model: str) -> tuple[int, int]:
        """Return the highest (epoch, sequence) seen of a model; (0, 0) if none was seen."""
        return self._highest.get(model, (0, 0))


class CountsInForce:
    """Replicas that are in force for each model, and the decisions whose leader does not know them.

    A leader that lost decisions with etcd's data takes the registered workers for the count of a pool. Those that its
    predecessor requested and that have not registered yet would end, since no decision can name them.
    """

    def __init__(self) -> None:
        self._accepted: dict[str, ScalingDecision] = {}
        self._existing: dict[tuple[str, str], int] = {}

    def accept(self, decision: ScalingDecision, highest: tuple[int, int]) -> None:
        """Record that a decision was accepted, unless a newer one was; one above the fence's ``highest`` is void."""
        newest = self._accepted.get(decision.model)
        before = (0, 0) if newest is None else (newest.epoch, newest.sequence)
        number = (decision.epoch, decision.sequence)
        if number <= highest and (before <= number or before > highest):
            self._accepted[decision.model] = decision

    def record_existing(self, model: str, pool: str, replicas: int) -> None:
        """Record the existing replicas of a pool, which are in force until a decision of its model is accepted."""
        self._existing[model, pool] = replicas

    def of(self, model: str) -> dict[str, int]:
        """Return the replicas of the newest accepted decision by pool; empty if there is none."""
        accepted = self._accepted.get(model)
        return {} if accepted is None else {target.pool: target.replicas for target in accepted.targets}

    def unknown_to(self, decision: ScalingDecision) -> dict[str, int]:
        """Return the replicas in force by pool if the leader of a decision does not know them; empty otherwise.

        A leader knows the decisions of its own term. One of another term starts from fewer replicas (``previous``) than
        are in force, and decides on fewer, only if it does not know of the others.
        """
        accepted = self._accepted.get(decision.model)
        if accepted is None:
            found = ((target, self._existing.get((decision.model, target.pool))) for target in decision.targets)
            in_force = {t.pool: max(0, existing - len(t.victims)) for t, existing in found if existing is not None}
        else:
            in_force = self.of(decision.model) if accepted.epoch != decision.epoch else {}
        unknown = any(in_force.get(t.pool, 0) > max(t.previous, t.replicas) for t in decision.targets)
        return in_force if unknown else {}


class EpochFence:
    """Highest epoch that one incarnation of a worker has seen in commands of one kind.

    An epoch that no leader has, as somebody forged it or etcd lost it, would block the worker until it restarts. So the
    caller compares it with the terms in etcd when a command was ``refused``.
    """

    def __init__(self) -> None:
        self.highest = 0
        self.refused = 0
        """Epoch of the last command that was refused since the last comparison; 0: none."""

    def admit(self, epoch: int) -> bool:
        """Record the epoch and return True, or return False if a higher epoch was seen."""
        if epoch < self.highest:
            self.refused = epoch
            return False
        self.highest = epoch
        return True

    def compare(self, epochs: Collection[int]) -> bool:
        """Lower the fence to the refused epoch if a present leader has that, and none the highest; return True if so.

        The epochs must have been read after the last command: whoever sent it had its epoch in etcd by then. That of a
        former leader is in no key, so that its commands stay refused.
        """
        refused, self.refused = self.refused, 0
        if refused not in epochs or self.highest in epochs:
            return False
        self.highest = refused
        return True
