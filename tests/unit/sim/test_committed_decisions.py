"""The checks of committed decisions find what violates order and epochs, and nothing else."""

from loadline.core.vocabulary.decisions import PoolTarget
from loadline.sim.chaos.committed_decisions import CommittedDecisions, unknown_shrinks
from tests.support.decisions import decision


class Checked:
    """Committed decisions whose violations are kept by name."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.committed = CommittedDecisions(lambda name, _detail: self.violations.append(name))

    def add(self, epoch: int, sequence: int, leader_epoch: int | None) -> list[str]:
        """Add a decision and return all violations until then."""
        self.committed.add(decision(epoch, sequence), leader_epoch)
        return self.violations


def test_decisions_that_rise_under_their_leaders_violate_nothing() -> None:
    checked = Checked()
    checked.add(5, 1, 5)
    checked.add(5, 2, 5)
    assert checked.add(9, 3, None) == []
    assert list(checked.committed.by_id) == ["m-5-1", "m-5-2", "m-9-3"]


def test_an_earlier_epoch_a_used_sequence_and_another_leader_are_violations() -> None:
    assert [Checked().add(5, 1, other) for other in (4, 0)] == [["I2-fence"], ["I2-fence"]]
    for epoch, sequence in ((4, 8), (5, 7), (5, 6), (6, 7), (6, 6)):
        checked = Checked()
        checked.add(5, 7, 5)
        assert checked.add(epoch, sequence, epoch) == ["I1-order"], (epoch, sequence)


def test_sequences_start_again_only_where_data_is_lost_and_epochs_never() -> None:
    checked = Checked()
    checked.add(5, 7, 5)
    with checked.committed.losing_data():
        checked.add(5, 8, 5)  # committed before the loss and observed late
    assert checked.add(6, 1, 6) == []
    assert checked.add(6, 1, 6) == ["I1-order"]
    with checked.committed.losing_data():
        assert checked.add(5, 9, 5) == ["I1-order"] * 2


def test_only_a_leader_of_another_term_shrinks_what_it_does_not_know() -> None:
    in_force = decision(5, 1, PoolTarget("p", "aggregated", 6, 4))
    shrinks = {
        (epoch, previous, replicas): unknown_shrinks(
            in_force, decision(epoch, 2, PoolTarget("p", "aggregated", replicas, previous))
        )
        for epoch, previous, replicas in ((5, 4, 3), (6, 6, 3), (6, 4, 6), (6, 4, 3))
    }
    assert [key for key, found in shrinks.items() if found] == [(6, 4, 3)]
    assert shrinks[6, 4, 3] == {"p": "from 4 to 3, 6 were in force"}
