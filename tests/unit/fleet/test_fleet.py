"""Fleet state: registration, reports, freshness, pending workers, drains, and exact totals."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.fleet.fleet import Fleet, FleetKnobs
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.worker import WorkerLoad
from loadline.core.vocabulary.events import LoadReported
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord, WorkerSample
from tests.support.fleet_harness import STALE_MS, START, fleet_of, registered, reported, sample

DEADLINE_MS = 60_000
DECODE = PoolKnobs("decode", "decode", start_deadline_ms=DEADLINE_MS)
PREFILL = PoolKnobs("prefill", "prefill")


def fleet_with(*workers: RegisteredWorker, knobs: FleetKnobs | None = None) -> tuple[Fleet, Pool]:
    fleet = fleet_of(PREFILL, DECODE, knobs=knobs)
    for worker in workers:
        assert fleet.register(worker, START) is None
    return fleet, fleet.models["m"].pools["decode"]


def refresh(pool: Pool, now: int) -> Pool:
    pool.expire_silent(now, STALE_MS)
    pool.refresh_totals(now, STALE_MS)
    return pool


# -- registration ------------------------------------------------------------------------------------------------------


def test_a_worker_counts_by_its_state() -> None:
    fleet, pool = fleet_with(registered("a"), registered("b", state="starting"), registered("c", state="draining"))
    assert (pool.ready, pool.starting, pool.draining_workers(), fleet.workers) == (1, 1, 1, 3)
    fleet.register(registered("b"), START)
    assert (pool.ready, pool.starting) == (2, 0)
    fleet.register(registered("a", state="draining"), START)
    assert (pool.ready, pool.draining_workers()) == (1, 2)


@pytest.mark.parametrize(("ratios", "usage"), [((0.6, 0.8), 0.7), ((0.6, None), 0.6), ((None, None), None), ((), 0.0)])
def test_the_kv_usage_of_a_pool_is_that_of_the_workers_that_report_it(
    ratios: tuple[float | None, ...], usage: float | None
) -> None:
    fleet, pool = fleet_with(*(registered(str(number)) for number in range(len(ratios))))
    for number, ratio in enumerate(ratios):
        report = WorkerSample(1, 0, kv_usage_ratio=ratio, waiting_requests=1, running_requests=1)
        fleet.ingest(reported(str(number), report), START)
    status = refresh(pool, START).status(START)
    assert status.kv_usage == (None if usage is None else pytest.approx(usage))
    assert [worker.kv_reported for worker in status.workers] == [ratio is not None for ratio in ratios]


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (RegisteredWorker(WorkerRecord("x", "decode", "a", "decode", 1), 5), Rejection.UNKNOWN_MODEL),
        (registered("a", pool="nope"), Rejection.UNKNOWN_POOL),
        (registered("a", role="prefill"), Rejection.ROLE_MISMATCH),
    ],
)
def test_a_record_of_an_unknown_pool_or_another_role_is_refused(worker: RegisteredWorker, why: Rejection) -> None:
    fleet, _ = fleet_with()
    assert fleet.register(worker, START) == why
    assert fleet.workers == 0


def test_a_record_that_names_its_role_again_is_assigned_again() -> None:
    fleet, pool = fleet_with(registered("a"))
    fleet.register(registered("a", role="prefill"), START)
    assert fleet.register(registered("a"), START) is None
    assert (pool.ready, fleet.unassigned.workers, fleet.unassigned.counts) == (1, {}, {})


def test_workers_max_applies_to_new_workers_only() -> None:
    fleet, pool = fleet_with(registered("a"), registered("b"), knobs=FleetKnobs(workers_max=4))
    fleet.knobs = FleetKnobs(workers_max=2)
    assert fleet.register(registered("c"), START) == Rejection.WORKERS_FULL
    assert fleet.register(registered("b", incarnation=2), START) is None
    assert fleet.deregister("m", "decode", "a", START) is None
    assert fleet.register(registered("c"), START) is None
    assert sorted(pool.workers) == ["b", "c"]


def test_a_new_incarnation_starts_without_samples() -> None:
    fleet, pool = fleet_with(registered("a"))
    fleet.ingest(reported("a", sample(9, kv=0.8)), START)
    assert refresh(pool, START).fresh == 1
    fleet.register(registered("a", incarnation=2), START)
    assert refresh(pool, START).fresh == 0
    assert pool.load == WorkerLoad()
    assert fleet.ingest(reported("a", sample(1, kv=0.1), incarnation=2), START) == (0, None)


def test_an_updated_record_keeps_samples() -> None:
    fleet, pool = fleet_with(registered("a", ranks=2))
    fleet.ingest(reported("a", sample(1, kv=0.4), sample(1, kv=0.6, rank=1)), START)
    fleet.register(registered("a", ranks=1), START)
    assert refresh(pool, START).load.kv_micro == 400_000
    assert fleet.workers == 1


def test_reading_the_registry_removes_unlisted_workers() -> None:
    fleet, pool = fleet_with(registered("a"), registered("b"))
    refused = fleet.replace_registry([registered("b"), registered("c"), registered("d", role="prefill")], START)
    assert refused == [Rejection.ROLE_MISMATCH]
    assert (sorted(pool.workers), pool.ready, fleet.workers) == (["b", "c"], 2, 2)


@pytest.mark.parametrize(
    ("identity", "why"),
    [
        (("x", "decode", "a"), Rejection.UNKNOWN_MODEL),
        (("m", "nope", "a"), Rejection.UNKNOWN_POOL),
        (("m", "decode", "b"), Rejection.UNKNOWN_WORKER),
    ],
)
def test_an_unknown_worker_cannot_be_deregistered(identity: tuple[str, str, str], why: Rejection) -> None:
    fleet, _ = fleet_with(registered("a"))
    assert fleet.deregister(*identity, START) == why


# -- reports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (LoadReported("x", "decode", "a", 1, [sample(1)]), Rejection.UNKNOWN_MODEL),
        (reported("a", sample(1), pool="nope"), Rejection.UNKNOWN_POOL),
        (reported("z", sample(1)), Rejection.UNKNOWN_WORKER),
        (reported("a", sample(1), incarnation=6), Rejection.STALE_INCARNATION),
        (reported("a", sample(1), incarnation=8), Rejection.UNKNOWN_INCARNATION),
        (reported("a", sample(1, rank=2)), Rejection.RANK_OUT_OF_RANGE),
        (reported("a", sample(5)), Rejection.NOT_NEWER),
        (reported("a", sample(4)), Rejection.NOT_NEWER),
    ],
)
def test_an_invalid_report_is_refused(event: LoadReported, why: Rejection) -> None:
    fleet, pool = fleet_with(registered("a", incarnation=7, ranks=2))
    fleet.ingest(reported("a", sample(5, kv=0.3), sample(5, kv=0.3, rank=1), incarnation=7), START)
    refresh(pool, START)
    event = msgspec.structs.replace(event, incarnation=7) if event.incarnation == 1 else event
    assert fleet.ingest(event, START + 4_000) == (1, why)
    assert pool.workers["a"].seen_at_ms == START, "a refused report does not make a worker fresh"


def test_valid_samples_of_a_report_with_invalid_ones_count() -> None:
    fleet, pool = fleet_with(registered("a"))
    outcome = fleet.ingest(reported("a", sample(2, kv=0.2), sample(1, kv=0.1), sample(3, kv=0.3)), START)
    assert outcome == (1, Rejection.NOT_NEWER)
    assert refresh(pool, START).load.kv_micro == 300_000


def test_the_load_of_a_worker_is_mean_usage_and_total_requests_of_its_ranks() -> None:
    fleet, pool = fleet_with(registered("a", ranks=3))
    fleet.ingest(reported("a", sample(1, 0.9, 2, 0), sample(1, 0.5, 3, 4, rank=2)), START)
    assert refresh(pool, START).load == WorkerLoad(
        1, 1, kv_micro=700_000, waiting=5, waiting_while_running=3, running=4
    )


@pytest.mark.parametrize(
    ("load", "micro"),
    [
        (WorkerSample(1, 0, kv_blocks_used=25, kv_blocks_total=100), 250_000),
        (WorkerSample(1, 0, kv_blocks_used=25), 125_000),  # of the record's 200
        (WorkerSample(1, 0, kv_blocks_used=300), 1_000_000),
        (WorkerSample(1, 0, kv_blocks_used=25, kv_usage_ratio=0.9), 125_000),
        (WorkerSample(1, 0, kv_usage_ratio=0.9), 900_000),
    ],
)
def test_blocks_take_precedence_over_the_usage_ratio(load: WorkerSample, micro: int) -> None:
    record = WorkerRecord("m", "decode", "a", "decode", 1, kv_blocks_total=200)
    fleet, pool = fleet_with(RegisteredWorker(record, 5))
    fleet.ingest(reported("a", load), START)
    assert refresh(pool, START).load.kv_micro == micro


def test_a_metric_missing_from_one_rank_is_unknown() -> None:
    fleet, pool = fleet_with(registered("a", ranks=2), registered("b"))
    fleet.ingest(reported("a", sample(1), sample(1, kv=None, waiting=None, rank=1)), START)
    fleet.ingest(reported("b", WorkerSample(1, 0, kv_blocks_used=5, waiting_requests=0)), START)
    load = refresh(pool, START).load
    assert (pool.fresh, load.kv_reporting, load.queue_reporting) == (2, 0, 1), "blocks without a total give no usage"


# -- freshness ---------------------------------------------------------------------------------------------------------


def test_a_worker_is_fresh_until_it_is_silent_for_too_long() -> None:
    fleet, pool = fleet_with(registered("a"))
    assert refresh(pool, START).fresh == 0, "registered, but not reporting"
    fleet.ingest(reported("a", sample(1, kv=0.5)), START)
    assert refresh(pool, START + STALE_MS).fresh == 1
    assert refresh(pool, START + STALE_MS + 1).fresh == 0
    assert pool.load == WorkerLoad()
    fleet.ingest(reported("a", sample(2, kv=0.5)), START + 60_000)
    assert refresh(pool, START + 60_000).fresh == 1


@pytest.mark.parametrize(("fresh", "quorate"), [(3, False), (4, True), (5, True)])
def test_a_quorum_is_a_fraction_of_the_ready_workers(*, fresh: int, quorate: bool) -> None:
    fleet, pool = fleet_with(*(registered(name) for name in "abcde"))
    for name in "abcde"[:fresh]:
        fleet.ingest(reported(name, sample(1)), START)
    assert refresh(pool, START).has_quorum(0.8) is quorate


# -- pending workers ---------------------------------------------------------------------------------------------------


def test_requested_workers_are_pending_until_the_deadline() -> None:
    _, pool = fleet_with(registered("a"), registered("b", state="starting"))
    assert pool.effective_target(START) == 2, "without a decision, the expected workers"
    pool.set_decided(4, START)
    supply = pool.worker_counts(START + DEADLINE_MS)
    assert (supply.ready, supply.starting, supply.pending, supply.overdue, supply.expected) == (1, 1, 2, 0, 4)
    supply = refresh(pool, START + DEADLINE_MS + 1).worker_counts(START + DEADLINE_MS + 1)
    assert (supply.ready, supply.starting, supply.pending, supply.overdue, supply.expected) == (1, 0, 0, 3, 1)
    assert pool.effective_target(START + DEADLINE_MS + 1) == 4
    assert pool.scaling_base(START + DEADLINE_MS + 1) == 1


def test_a_late_worker_that_becomes_ready_counts_once() -> None:
    fleet, pool = fleet_with(registered("a", state="starting"))
    now = START + DEADLINE_MS + 1
    assert refresh(pool, now).worker_counts(now).starting == 0
    fleet.register(registered("a"), now)
    supply = pool.worker_counts(now)
    assert (supply.ready, supply.starting, supply.expected) == (1, 0, 1), "also before the next expire_silent"


def test_a_late_worker_that_is_removed_does_not_count() -> None:
    fleet, pool = fleet_with(registered("a", state="starting"), registered("b", state="starting"))
    now = START + DEADLINE_MS + 1
    refresh(pool, now)
    fleet.deregister("m", "decode", "a", now)
    assert (pool.worker_counts(now).starting, pool.worker_counts(now).overdue) == (0, 1)


def test_a_lost_worker_is_pending_from_its_loss() -> None:
    fleet, pool = fleet_with(registered("a"), registered("b"))
    pool.set_decided(2, START)
    later = START + 10 * DEADLINE_MS
    fleet.deregister("m", "decode", "b", later)
    assert pool.worker_counts(later + DEADLINE_MS).pending == 1
    assert pool.worker_counts(later + DEADLINE_MS + 1).pending == 0


def test_changed_targets_set_the_scaling_times() -> None:
    _, pool = fleet_with(registered("a"))
    pool.set_decided(3, START)
    assert (pool.scaled_up_at_ms, pool.scaled_down_at_ms) == (-1, -1), "the first known decision is no change"
    pool.set_decided(4, START + 1)
    pool.set_decided(4, START + 2)
    pool.set_decided(2, START + 3)
    assert (pool.scaled_up_at_ms, pool.scaled_down_at_ms) == (START + 1, START + 3)


# -- drains ------------------------------------------------------------------------------------------------------------


def test_a_draining_worker_stays_listed_until_its_drain_ends() -> None:
    fleet, pool = fleet_with(registered("a"), registered("b"))
    fleet.start_drain("m", "decode", "a", START)
    assert (pool.ready, pool.draining_workers()) == (1, 1)
    fleet.deregister("m", "decode", "a", START)
    assert "a" in pool.workers
    assert fleet.ingest(reported("a", sample(1)), START) == (0, None), "it still reports"
    fleet.end_drain("m", "decode", "a", START)
    assert (sorted(pool.workers), fleet.workers) == (["b"], 1)


def test_a_drained_worker_is_removed_with_its_key() -> None:
    fleet, pool = fleet_with(registered("a"), registered("b"))
    fleet.start_drain("m", "decode", "a", START)
    fleet.end_drain("m", "decode", "a", START)
    assert (pool.ready, pool.draining_workers()) == (1, 1), "still registered and listed, and not ready"
    fleet.deregister("m", "decode", "a", START)
    assert (sorted(pool.workers), pool.draining_workers(), fleet.workers) == (["b"], 0, 1)


# -- random events -----------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")
operations = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(NAMES), st.integers(1, 3), st.sampled_from(["starting", "ready"])),
    st.tuples(st.just("drain"), st.sampled_from(NAMES)),
    st.tuples(st.just("end"), st.sampled_from(NAMES)),
    st.tuples(st.just("deregister"), st.sampled_from(NAMES)),
    st.tuples(st.just("report"), st.sampled_from(NAMES), st.integers(1, 3), st.integers(0, 100), st.integers(0, 1)),
    st.tuples(st.just("replace"), st.sets(st.sampled_from(NAMES))),
    st.tuples(st.just("wait"), st.integers(1, 50_000)),
    st.tuples(st.just("refresh")),
)


def do(fleet: Fleet, pool: Pool, operation: tuple[object, ...], now: int, sequence: int) -> None:
    match operation:
        case ("register", str(name), int(incarnation), ("starting" | "ready") as state):
            fleet.register(registered(name, incarnation=incarnation, state=state, ranks=2), now)
        case ("drain", str(name)) if name in pool.workers:
            fleet.start_drain("m", "decode", name, now)
        case ("end", str(name)):
            fleet.end_drain("m", "decode", name, now)
        case ("deregister", str(name)):
            fleet.deregister("m", "decode", name, now)
        case ("report", str(name), int(incarnation), int(percent), int(rank)):
            load = sample(sequence, percent / 100, percent, percent % 2, rank)
            fleet.ingest(reported(name, load, incarnation=incarnation), now)
        case ("replace", set(names)):
            fleet.replace_registry([registered(str(name), ranks=2) for name in sorted(names)], now)
        case ("refresh",):
            refresh(pool, now)


@given(st.lists(operations, max_size=60))
def test_totals_equal_a_recount(sequence_of_operations: list[tuple[object, ...]]) -> None:
    fleet, pool = fleet_with()
    now = START
    for sequence, operation in enumerate(sequence_of_operations, start=1):
        if operation[0] == "wait":
            now += operation[1]  # type: ignore[operator]
        do(fleet, pool, operation, now, sequence)
        workers = list(pool.workers.values())
        assert fleet.workers == len(workers)
        assert pool.ready == sum(worker.availability == "ready" for worker in workers)
        assert pool.starting == sum(worker.availability == "starting" for worker in workers)
        assert 0 <= pool.overdue <= pool.starting
        assert min(msgspec.structs.astuple(pool.worker_counts(now))) >= 0
    refresh(pool, now)
    fresh = [w for w in pool.workers.values() if w.availability == "ready" and 0 <= now - w.seen_at_ms <= STALE_MS]
    total = WorkerLoad()
    for worker in fresh:
        total.replace(WorkerLoad(), worker.measure_load())
    assert (pool.fresh, pool.load) == (len(fresh), total)


@given(st.permutations([1, 2, 3, 4]), st.data())
def test_duplicate_and_unordered_samples_change_nothing(order: list[int], data: st.DataObject) -> None:
    """The newest sample wins in any order and with any number of duplicates."""
    straight, pool = fleet_with(registered("a"))
    mixed, other = fleet_with(registered("a"))
    for number in (1, 2, 3, 4):
        straight.ingest(reported("a", sample(number, kv=number / 10)), START)
    for number in [*order, *data.draw(st.lists(st.sampled_from(order), max_size=6))]:
        mixed.ingest(reported("a", sample(number, kv=number / 10)), START)
    assert msgspec.json.encode(refresh(other, START)) == msgspec.json.encode(refresh(pool, START))
