"""Plans of the local scaler: tables of its rules, and properties over random histories of a pool."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loadline.core.vocabulary.decisions import PoolTarget, Victim
from loadline.scalers.local.plan import (
    Process,
    ProcessAction,
    ProcessTiming,
    StartFailures,
    backoff_ms,
    failures_after_exit,
    has_recovered,
    is_reached,
    mark_leaving,
    plan_actions,
)

TIMING = ProcessTiming(
    linger_ms=2_000,
    grace_ms=5_000,
    settle_ms=1_000,
    reset_ms=600_000,
    restart_backoff_ms=500,
    restart_backoff_max_ms=30_000,
    start_concurrency=2,
)
NOW = 100_000
INCARNATION = 7
TTL = 60_000


def target(replicas: int, *victims: str) -> PoolTarget:
    return PoolTarget("p", "decode", replicas, replicas, tuple(Victim(name, INCARNATION) for name in victims))


def old(worker: str, **changes: object) -> Process:
    return replace(Process(worker, INCARNATION, 10), **changes)


A, B, C = old("a"), old("b"), old("c", started_ms=20)
START_1 = ProcessAction("start", count=1)


@pytest.mark.parametrize(
    ("processes", "pool_target", "expected"),
    [
        pytest.param([A], None, [], id="without-a-target-nothing-changes"),
        pytest.param([A, B], target(2), [], id="at-the-target"),
        pytest.param([A], target(2), [START_1], id="one-missing"),
        pytest.param([], target(0), [], id="target-zero"),
        pytest.param([], target(5), [ProcessAction("start", count=2)], id="starts-are-bounded"),
        pytest.param(
            [Process("a", INCARNATION, NOW), Process("b", INCARNATION, NOW)],
            target(5),
            [],
            id="sufficient-starting-workers",
        ),
        pytest.param([Process("a", INCARNATION, NOW), B], target(5), [START_1], id="room-for-one-more-start"),
        pytest.param(
            [A, B, C], target(2), [ProcessAction("terminate", "c", reason="surplus")], id="surplus-newest-first"
        ),
        pytest.param(
            [A, B], target(0), [ProcessAction("terminate", w, reason="surplus") for w in "ab"], id="all-are-surplus"
        ),
        pytest.param([A, old("b", leave_by_ms=NOW + 1)], target(1), [], id="a-draining-victim-is-not-signalled-again"),
        pytest.param([A, old("b", leave_by_ms=NOW + 1)], target(2), [START_1], id="a-victim-does-not-count-as-replica"),
        pytest.param(
            [A, old("b", leave_by_ms=NOW)],
            target(1),
            [ProcessAction("terminate", "b", reason="drain_deadline")],
            id="drain-deadline",
        ),
        pytest.param(
            [old("a", leave_by_ms=NOW + TTL, drained_ms=NOW - 1_999)],
            target(0),
            [],
            id="a-drained-worker-may-take-time-to-exit",
        ),
        pytest.param(
            [old("a", leave_by_ms=NOW - 9_999, drained_ms=NOW - 1_999)],
            target(0),
            [],
            id="drained-before-the-deadline",
        ),
        pytest.param(
            [old("a", leave_by_ms=NOW + TTL, drained_ms=NOW - 2_000)],
            target(0),
            [ProcessAction("terminate", "a", reason="drained")],
            id="drained-and-still-running",
        ),
        pytest.param(
            [old("a", signal="terminate", signalled_ms=NOW - 4_999)],
            target(0),
            [],
            id="terminated-within-its-grace-time",
        ),
        pytest.param(
            [old("a", signal="terminate", signalled_ms=NOW - 5_000)],
            target(0),
            [ProcessAction("kill", "a")],
            id="grace-is-over",
        ),
        pytest.param([old("a", signal="kill", signalled_ms=0)], target(0), [], id="killed-once"),
        pytest.param(
            [old("a", signal="terminate", signalled_ms=NOW)],
            target(1),
            [START_1],
            id="an-ending-worker-does-not-count-as-replica",
        ),
    ],
)
def test_plan(processes: list[Process], pool_target: PoolTarget | None, expected: list[ProcessAction]) -> None:
    assert plan_actions(processes, pool_target, StartFailures(), TIMING, NOW) == expected


@pytest.mark.parametrize(
    ("count", "waited_ms", "starts"),
    [(0, 0, True), (1, 499, False), (1, 500, True), (3, 1_999, False), (3, 2_000, True)],
)
def test_failed_starts_are_spaced(count: int, waited_ms: int, *, starts: bool) -> None:
    failures = StartFailures(count, NOW - waited_ms)
    assert bool(plan_actions([], target(1), failures, TIMING, NOW)) is starts


def test_backoff_is_bounded() -> None:
    assert [backoff_ms(count, TIMING) for count in (0, 1, 2, 7, 10_000)] == [0, 500, 1_000, 30_000, 30_000]


def test_exits_without_a_signal_are_failures_within_ten_minutes() -> None:
    young, one = Process("a", INCARNATION, NOW - 599_999), StartFailures(1, 5)
    assert failures_after_exit(one, young, TIMING, NOW) == StartFailures(2, NOW)
    assert failures_after_exit(one, Process("a", INCARNATION, NOW - 600_000), TIMING, NOW) == StartFailures()
    assert failures_after_exit(one, replace(young, signal="terminate"), TIMING, NOW) == one
    assert failures_after_exit(one, replace(young, leave_by_ms=NOW), TIMING, NOW) == one


@pytest.mark.parametrize(
    ("ages_ms", "lived_ms", "recovered"),
    [
        ([39_999, 50_000], 20_000, False),
        ([40_000, 50_000], 20_000, True),
        ([50_000], 20_000, False),
        ([999, 1_000], 10, False),
        ([1_000, 1_000], 10, True),
        ([600_000, 600_000], 10_000_000, True),
    ],
)
def test_a_pool_has_recovered_when_its_workers_outlive_the_one_that_failed(
    ages_ms: list[int], lived_ms: int, *, recovered: bool
) -> None:
    processes = [Process(f"w{number}", INCARNATION, NOW - age_ms) for number, age_ms in enumerate(ages_ms)]
    leaving = Process("old", INCARNATION, NOW, leave_by_ms=NOW)
    assert has_recovered([*processes, leaving], target(2), lived_ms, TIMING, NOW) is recovered
    assert not has_recovered(processes, None, lived_ms, TIMING, NOW)


def test_a_victim_stays_a_victim_and_keeps_its_first_deadline() -> None:
    [first] = mark_leaving([A], target(0, "a"), set(), TTL, NOW)
    assert first.leave_by_ms == NOW + TTL
    assert mark_leaving([first], target(1), set(), TTL, NOW + 1) == [first]
    assert mark_leaving([first], target(0, "a"), set(), TTL, NOW + 1) == [first]


def test_a_victim_of_an_earlier_incarnation_is_ignored() -> None:
    [own] = mark_leaving([old("a", incarnation=INCARNATION + 1)], target(0, "a"), set(), TTL, NOW)
    assert not own.leaving
    [later] = mark_leaving([old("a", incarnation=INCARNATION - 1)], target(0, "a"), set(), TTL, NOW)
    assert later.leaving


def test_a_worker_that_drained_without_a_command_is_replaced() -> None:
    processes = mark_leaving([A, B], target(2), {"a"}, TTL, NOW)
    assert processes[0].leaving
    assert plan_actions(processes, target(2), StartFailures(), TIMING, NOW) == [START_1]


def test_a_target_is_reached_with_its_count_and_no_leaving_worker() -> None:
    assert is_reached([A, B], target(2))
    assert not is_reached([A], target(2))
    assert not is_reached([A, B, C], target(2))
    assert not is_reached([A, old("b", leave_by_ms=1)], target(2))


class Pool:
    """Pool whose simulated processes start and exit as planned."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.drained: set[str] = set()
        self.failures = StartFailures()
        self.started = 0

    def turn(self, pool_target: PoolTarget, now: int) -> list[ProcessAction]:
        before = list(self.processes.values())
        marked = mark_leaving(before, pool_target, self.drained, TTL, now)
        self.processes = {process.worker: process for process in marked}
        actions = plan_actions(marked, pool_target, self.failures, TIMING, now)
        for action in actions:
            if action.kind == "start":
                for _ in range(action.count):
                    self.started += 1
                    name = f"p-{self.started}"
                    self.processes[name] = Process(name, INCARNATION, now)
            else:
                self.processes[action.worker] = replace(
                    self.processes[action.worker], signal=action.kind, signalled_ms=now
                )
        return actions

    def exits(self, worker: str, now: int) -> None:
        self.failures = failures_after_exit(self.failures, self.processes.pop(worker), TIMING, now)


steps = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sets(st.integers(0, 9), max_size=3),
        st.sets(st.integers(0, 9), max_size=2),
        st.sets(st.integers(0, 9), max_size=2),
        st.integers(1, 40_000),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_a_pool_never_exceeds_its_target_keeps_grace_times_and_reaches_its_target(
    life: list[tuple[int, set[int], set[int], set[int], int]],
) -> None:
    pool, now = Pool(), 0
    pool_target = target(0)

    def named(picks: set[int]) -> list[str]:
        alive = sorted(pool.processes)
        return sorted({alive[pick % len(alive)] for pick in picks}) if alive else []

    for replicas, victims, drained, died, passes_ms in life:
        pool_target = target(replicas, *named(victims))
        pool.drained |= set(named(drained))
        for worker in named(died):
            pool.exits(worker, now)
        now += passes_ms
        for action in pool.turn(pool_target, now):
            process = pool.processes.get(action.worker)
            if action.kind == "terminate" and process is not None and process.leave_by_ms is not None:
                assert process.drained_ms is not None or now >= process.leave_by_ms
        staying = [process for process in pool.processes.values() if not process.leaving]
        assert len(staying) <= replicas

    # If every process obeys its signals, the target is reached, since deadlines and back-off are finite.
    for _ in range(200):
        now += 1_000
        pool.turn(pool_target, now)
        for worker, process in list(pool.processes.items()):
            if process.signal == "kill":
                pool.exits(worker, now)
    assert is_reached(list(pool.processes.values()), pool_target)


def test_what_does_not_listen_ends_before_what_may_serve() -> None:
    processes = [Process("p-1", 1, NOW - 9_000), Process("p-2", 2, NOW - 8_000), Process("p-3", 3, NOW - 7_000)]
    for unready, ended in ((frozenset(), "p-3"), (frozenset({"p-2"}), "p-2"), (frozenset({"p-1", "p-2"}), "p-2")):
        (action,) = plan_actions(processes, target(2), StartFailures(), TIMING, NOW, unready=unready)
        assert (action.kind, action.worker) == ("terminate", ended)
