"""Checks of the order and epochs of decisions, from what any observer of the store and the scaler can see."""

from collections.abc import Iterator
from contextlib import contextmanager

from loadline.core.vocabulary.decisions import Decision
from loadline.sim.chaos.invariants import ReportViolation


class CommittedDecisions:
    """All decisions ever committed, each checked when it is added.

    Args:
        report: Receives violations.
    """

    def __init__(self, report: ReportViolation) -> None:
        self.by_id: dict[str, Decision] = {}
        self._report = report
        self._newest: dict[str, tuple[int, int]] = {}
        self._sequences: dict[str, int] = {}
        self._data_lost = False

    def add(self, decision: Decision, leader_epoch: int | None) -> None:
        """Add a decision at the moment of its commit, or in the order of the commits.

        Args:
            decision: Committed decision.
            leader_epoch: Epoch of the leader's key at the commit; 0: there was no such key; None: not known.
        """
        model, number = decision.model, (decision.epoch, decision.sequence)
        if leader_epoch is not None and decision.epoch != leader_epoch:
            self._report("I2-fence", f"{model}: epoch {decision.epoch}, the current one is {leader_epoch}")
        newest = self._newest.get(model, (0, 0))
        if number <= newest or decision.sequence <= self._sequences.get(model, 0):
            self._report("I1-order", f"{model}: {number} after {newest}")
        self._newest[model] = max(number, newest)
        if not self._data_lost:
            self._sequences[model] = decision.sequence
        self.by_id[decision.decision_id] = decision

    @contextmanager
    def losing_data(self) -> Iterator[None]:
        """While the store loses data: a new leader may count decisions from 1 again, but under a higher epoch."""
        self._data_lost = True
        self._sequences.clear()
        yield
        self._data_lost = False


def unknown_shrinks(in_force: Decision, decision: Decision) -> dict[str, str]:
    """Return how a decision of another term shrinks pools below counts in force that its leader does not know.

    Args:
        in_force: Decision that the scaler applies until then.
        decision: Decision that it accepts.

    Returns:
        The counts as text, by pool.
    """
    counts = {target.pool: target.replicas for target in in_force.targets}
    return {
        target.pool: f"from {target.previous} to {target.replicas}, {counts[target.pool]} were in force"
        for target in decision.targets
        if decision.epoch != in_force.epoch and counts.get(target.pool, 0) > max(target.previous, target.replicas)
    }
