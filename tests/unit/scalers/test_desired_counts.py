"""Desired counts: which of a decision and a status is newer, and how long they are kept."""

from msgspec.structs import replace

from loadline.core.vocabulary.decisions import PoolTarget
from loadline.core.vocabulary.status import AgentStatus, DecisionSummary
from loadline.scalers.desired_counts import DesiredCounts
from loadline.wire.messages import ScalingDecision
from tests.support.decisions import decision
from tests.unit.adapters.test_metrics import status_with

HOLD_S = 30.0


class Clock:
    """Monotonic time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def counts_of(clock: Clock | None = None) -> DesiredCounts:
    return DesiredCounts(["m"], HOLD_S, clock or Clock())


def decided(epoch: int, sequence: int, replicas: int) -> ScalingDecision:
    return decision(epoch, sequence, PoolTarget("decode", "decode", replicas, 0))


def reported(epoch: int, sequence: int, replicas: int, *, settled: bool = True, known: bool = True) -> AgentStatus:
    """Return the status of a leader whose newest decision has this sequence."""
    status = status_with({}, {})
    [model] = status.models
    pool = replace(model.pools[0], pool="decode", desired=replicas, decided=known)
    summary = DecisionSummary("d", "m", 1, sequence, 0, "applied", {"decode": replicas}, ())
    changed = replace(model, model="m", settled=settled, pools=(pool,), decision=summary if sequence else None)
    return replace(status, epoch=epoch, models=(changed,))


def test_a_decision_is_known_at_once_and_confirmed_by_the_status() -> None:
    clock = Clock()
    counts = counts_of(clock)
    counts.apply_decision(decided(1, 1, 3))
    assert counts.count("m", "decode") == 3
    clock.now_s += HOLD_S
    counts.apply_status(reported(1, 1, 3))
    clock.now_s += HOLD_S
    assert counts.count("m", "decode") == 3
    clock.now_s += 0.1
    assert counts.count("m", "decode") is None
    assert not counts.known


def test_a_status_older_than_the_decision_does_not_undo_it() -> None:
    counts = counts_of()
    counts.apply_decision(decided(2, 5, 3))
    counts.apply_status(reported(2, 4, 1))
    counts.apply_status(reported(1, 9, 1))
    assert counts.count("m", "decode") == 3
    counts.apply_status(reported(2, 5, 2))  # it was refused, so fewer exist
    assert counts.count("m", "decode") == 2


def test_the_status_of_a_former_leader_does_not_undo_that_of_its_successor() -> None:
    counts = counts_of()
    counts.apply_status(reported(2, 4, 7))
    counts.apply_status(reported(1, 4, 1))
    assert counts.count("m", "decode") == 7


def test_a_forged_number_blocks_until_nothing_confirms_it() -> None:
    clock = Clock()
    counts = counts_of(clock)
    counts.apply_status(reported(2**53, 9, 7))
    clock.now_s += HOLD_S
    counts.apply_status(reported(1, 4, 2))
    assert counts.count("m", "decode") == 7
    clock.now_s += 0.1
    counts.apply_status(reported(1, 4, 8))
    assert counts.count("m", "decode") == 8
    counts.apply_status(reported(1, 3, 9))
    assert counts.count("m", "decode") == 8


def test_a_leader_that_has_not_read_the_decisions_confirms_nothing() -> None:
    clock = Clock()
    counts = counts_of(clock)
    counts.apply_status(reported(1, 1, 3))
    clock.now_s += HOLD_S - 1
    counts.apply_status(reported(2, 0, 0, settled=False))
    assert counts.count("m", "decode") == 3
    clock.now_s += 2
    assert counts.count("m", "decode") is None


def test_a_pool_without_a_decision_is_named_and_has_no_count() -> None:
    counts = counts_of()
    counts.apply_status(reported(1, 0, 0, known=False))
    assert counts.pools("m") == ["decode"]
    assert counts.count("m", "decode") is None


def test_the_status_of_another_leader_lowers_a_count_only_after_a_decision() -> None:
    counts = counts_of()
    counts.apply_decision(decided(1, 7, 8))
    counts.apply_status(reported(2, 0, 2))  # etcd was wiped: two workers have registered
    assert counts.count("m", "decode") == 8
    counts.apply_status(reported(2, 1, 2))  # committed, and refused because of the others
    assert counts.count("m", "decode") == 8
    counts.apply_decision(decided(2, 2, 9))
    counts.apply_status(reported(2, 3, 4))
    assert counts.count("m", "decode") == 4


def test_only_changes_and_the_end_of_an_outage_wake_streams() -> None:
    clock = Clock()
    counts = counts_of(clock)
    counts.apply_decision(decided(1, 1, 3))
    unchanged = counts.changed("m")
    counts.apply_status(reported(1, 1, 3))
    assert not unchanged.is_set()
    clock.now_s += HOLD_S + 1
    counts.apply_status(reported(1, 1, 3))
    assert unchanged.is_set()


def test_models_that_are_not_served_take_no_memory() -> None:
    counts = DesiredCounts(["other"], HOLD_S, Clock())
    counts.apply_status(reported(1, 1, 3))
    assert counts.models == ["other"]
