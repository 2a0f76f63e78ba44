"""Dispatcher of the demo's gateway: each request ends exactly once, even if workers or messages are lost."""

import random
from typing import Literal

from msgspec.structs import replace

from loadline.client.handover.messages import ClaimReply, ClaimRequest
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role, WorkerPhase
from loadline.demo.account import DemoSummary, Latencies, RequestAccount
from loadline.demo.dispatch import SILENT_S, Dispatcher
from loadline.demo.protocol import ResultBatch, Submission
from loadline.sim.engine import EngineEvent

TICK_S = 0.1


def record(name: str, role: Role, incarnation: int = 1, state: WorkerPhase = "ready") -> WorkerRecord:
    return WorkerRecord("m", role, name, role, incarnation, state)


P1, P2, D1 = record("p1", "prefill"), record("p2", "prefill"), record("d1", "decode")
D2 = record("d2", "decode")


def fleet(*records: WorkerRecord) -> tuple[Dispatcher, RequestAccount]:
    account = RequestAccount(ObjectiveKnobs())
    roles: tuple[Role, ...] = ("prefill", "decode")
    dispatcher = Dispatcher("g", roles, account)
    dispatcher.update_workers(records, 0.0)
    return dispatcher, account


def summarise(dispatcher: Dispatcher, account: RequestAccount) -> DemoSummary:
    return account.summary(in_flight=dispatcher.in_flight, queued=dispatcher.queued, virtual_s=1.0, speed=1.0)


def send_batches(dispatcher: Dispatcher) -> dict[str, list[Submission]]:
    dispatcher.assign()
    batches = dict(dispatcher.outboxes())
    for worker, submissions in batches.items():
        dispatcher.confirm_sent(worker, len(submissions))
    return batches


def results(
    worker: WorkerRecord, *events: EngineEvent, held: list[str] | None = None, leaving: bool = False
) -> ResultBatch:
    return ResultBatch(worker.worker, worker.incarnation, list(events), held, leaving)


def pass_time(dispatcher: Dispatcher, seconds: float) -> None:
    for _ in range(round(seconds / TICK_S) + 1):
        dispatcher.advance_time(TICK_S, 9_000.0)


def test_a_request_goes_through_both_roles_and_its_latencies_are_exact() -> None:
    dispatcher, account = fleet(P1, D1)
    dispatcher.arrive(1, 100, 11, at_ms=1_000.0)
    (submission,) = send_batches(dispatcher)["p1"]
    assert (submission.at_ms, submission.request.prefilled) == (1_000.0, False)
    dispatcher.apply_results(results(P1, EngineEvent("first_token", submission.request.request_id, 1_400.0)), 2_000.0)
    (submission,) = send_batches(dispatcher)["d1"]
    assert (submission.at_ms, submission.request.prefilled) == (1_400.0, True)
    assert submission.request.generated_tokens == 1
    dispatcher.apply_results(results(D1, EngineEvent("finished", submission.request.request_id, 1_800.0)), 2_000.0)
    (done,) = account.take_unreported()
    assert (done.ttft_ms, done.itl_ms, done.ttft_met, done.itl_met) == (400.0, 40.0, True, True)
    summary = summarise(dispatcher, account)
    assert (summary.finished, summary.in_flight, summary.queued, summary.lost) == (1, 0, 0, 0)


def test_requests_go_to_the_least_loaded_ready_worker() -> None:
    dispatcher, _ = fleet(P1, P2, record("p3", "prefill", state="draining"), record("p4", "prefill", state="starting"))
    for number, isl in enumerate((1_000, 100, 100, 100)):
        dispatcher.arrive(number, isl, 10, 0.0)
    batches = send_batches(dispatcher)
    assert {worker: len(submissions) for worker, submissions in batches.items()} == {"p1": 1, "p2": 3}


def test_requests_wait_until_a_worker_is_ready() -> None:
    dispatcher, _ = fleet()
    dispatcher.arrive(1, 100, 10, at_ms=10.0)
    assert send_batches(dispatcher) == {}
    assert dispatcher.queued == 1
    dispatcher.update_workers([P1], 5_000.0)
    assert send_batches(dispatcher)["p1"][0].at_ms == 5_000.0


def test_a_silent_worker_loses_its_requests_and_late_results_count_once() -> None:
    dispatcher, account = fleet(P1, P2)
    dispatcher.arrive(1, 100, 1, 0.0)
    first = send_batches(dispatcher)["p1"][0].request.request_id
    pass_time(dispatcher, SILENT_S)
    second = send_batches(dispatcher)["p2"][0].request.request_id
    assert first != second
    for worker, request in ((P1, first), (P2, second), (P2, second)):
        dispatcher.apply_results(results(worker, EngineEvent("first_token", request, 100.0)), 9_000.0)
    summary = summarise(dispatcher, account)
    assert (summary.finished, summary.retried, summary.lost) == (1, 1, 0)


def test_a_pause_of_the_gateway_does_not_count_as_silence_of_workers() -> None:
    dispatcher, account = fleet(P1, P2)
    dispatcher.arrive(1, 100, 1, 0.0)
    send_batches(dispatcher)
    dispatcher.advance_time(60.0, 9_000.0)
    assert account.retried == 0


def test_an_unregistered_worker_gets_no_new_requests_but_may_finish_its_own() -> None:
    dispatcher, account = fleet(P1)
    dispatcher.arrive(1, 100, 1, 0.0)
    name = send_batches(dispatcher)["p1"][0].request.request_id
    dispatcher.update_workers([], 100.0)
    dispatcher.arrive(2, 100, 1, 0.0)
    assert send_batches(dispatcher) == {}
    dispatcher.apply_results(results(P1, EngineEvent("first_token", name, 50.0)), 9_000.0)
    assert (account.finished, account.retried, dispatcher.queued) == (1, 0, 1)


def test_a_new_incarnation_and_a_leaving_worker_lose_their_requests_at_once() -> None:
    dispatcher, account = fleet(P1)
    dispatcher.arrive(1, 100, 1, 0.0)
    send_batches(dispatcher)
    restarted = record("p1", "prefill", incarnation=2)
    dispatcher.update_workers([restarted], 100.0)
    assert account.retried == 1
    send_batches(dispatcher)
    dispatcher.apply_results(results(restarted, leaving=True), 200.0)
    assert (account.retried, dispatcher.queued, dispatcher.complete) == (2, 1, False)


def test_a_request_that_the_worker_does_not_list_is_retried() -> None:
    dispatcher, account = fleet(P1)
    for number in (1, 2):
        dispatcher.arrive(number, 100, 1, 0.0)
    arrived, _ = (submission.request.request_id for submission in send_batches(dispatcher)["p1"])
    dispatcher.apply_results(results(P1, held=[arrived]), 0.0)
    assert account.retried == 0  # it may not have arrived yet
    for _ in range(5):
        pass_time(dispatcher, 1.0)
        dispatcher.apply_results(results(P1, held=[arrived]), 0.0)
    assert (account.retried, dispatcher.queued, dispatcher.in_flight) == (1, 1, 1)


def test_a_request_that_no_worker_can_hold_is_lost() -> None:
    dispatcher, account = fleet(P1)
    dispatcher.arrive(1, 100, 1, 0.0)
    name = send_batches(dispatcher)["p1"][0].request.request_id
    dispatcher.apply_results(results(P1, EngineEvent("refused", name, 0.0)), 0.0)
    summary = summarise(dispatcher, account)
    assert (summary.lost, summary.refused) == (1, 1)


def start_decoding(dispatcher: Dispatcher, osl_tokens: int = 11) -> str:
    """Start a request and bring it to ``d1`` for decoding; return its id there."""
    dispatcher.arrive(1, 100, osl_tokens, 0.0)
    name = send_batches(dispatcher)["p1"][0].request.request_id
    dispatcher.apply_results(results(P1, EngineEvent("first_token", name, 100.0)), 200.0)
    return send_batches(dispatcher)["d1"][0].request.request_id


def claim(worker: WorkerRecord, name: str, hop: int) -> ClaimRequest:
    return ClaimRequest(name, worker.worker, worker.incarnation, hop)


def test_only_results_of_the_owner_under_the_claimed_hop_count() -> None:
    dispatcher, account = fleet(P1, D1, D2)
    name = start_decoding(dispatcher)
    granted = ClaimReply(granted=True, worker="d2", incarnation=1)
    assert dispatcher.claim(claim(D2, name, 1)) == granted
    assert dispatcher.claim(claim(D2, name, 1)) == granted, "a repeated claim"
    assert dispatcher.claim(claim(D1, name, 1)) == ClaimReply(granted=False, worker="d2", incarnation=1)
    finished = EngineEvent("finished", name, 500.0)
    dispatcher.apply_results(results(D1, finished), 600.0)
    dispatcher.apply_results(results(D2, finished), 600.0)
    assert (account.finished, account.migrated) == (0, 1), "results under hop 0 are ignored"
    dispatcher.apply_results(replace(results(D2, finished), hops={name: 1}), 600.0)
    dispatcher.apply_results(replace(results(D2, finished), hops={name: 1}), 600.0)
    summary = summarise(dispatcher, account)
    assert (summary.finished, summary.migrated, summary.retried, summary.lost) == (1, 1, 0, 0)
    assert dispatcher.claim(claim(D1, name, 2)) == ClaimReply(granted=False), "the request has ended"


def test_a_request_that_its_source_takes_back_is_not_counted_as_migrated() -> None:
    dispatcher, account = fleet(P1, D1, D2)
    name = start_decoding(dispatcher)
    assert dispatcher.claim(claim(D1, name, 1)).granted
    assert dispatcher.claim(claim(D2, name, 1)) == ClaimReply(granted=False, worker="d1", incarnation=1)
    dispatcher.apply_results(replace(results(D1, EngineEvent("finished", name, 500.0)), hops={name: 1}), 600.0)
    assert (account.finished, account.migrated) == (1, 0)


def test_claims_of_unknown_workers_incarnations_and_requests_are_refused() -> None:
    dispatcher, _ = fleet(P1, D1)
    name = start_decoding(dispatcher)
    refused = ClaimReply(granted=False, worker="d1", incarnation=1)
    assert dispatcher.claim(claim(D2, name, 1)) == refused
    assert dispatcher.claim(claim(record("d1", "decode", incarnation=2), name, 1)) == refused
    assert dispatcher.claim(claim(D1, "other", 1)) == ClaimReply(granted=False)


def test_a_request_is_retried_if_its_new_owner_is_lost_and_old_claims_are_refused() -> None:
    dispatcher, account = fleet(P1, D1, D2)
    name = start_decoding(dispatcher)
    assert dispatcher.claim(claim(D2, name, 1)).granted
    dispatcher.apply_results(results(D1, held=[]), 300.0)
    pass_time(dispatcher, 2.5)
    dispatcher.apply_results(results(D1, held=[]), 300.0)
    assert account.retried == 0, "the previous owner need not list it"
    dispatcher.apply_results(results(D2, leaving=True), 400.0)
    assert (account.retried, dispatcher.queued) == (1, 1)
    assert dispatcher.claim(claim(D1, name, 2)) == ClaimReply(granted=False)


def test_a_migration_changes_the_load_of_both_workers() -> None:
    dispatcher, _ = fleet(P1, D1, D2)
    name = start_decoding(dispatcher)
    dispatcher.claim(claim(D2, name, 1))
    assert start_decoding(dispatcher), "the next request goes to the source, which has less load now"


def migrate_some(
    rng: random.Random,
    dispatcher: Dispatcher,
    workers: list[WorkerRecord],
    holds: dict[str, set[str]],
    hops: dict[str, int],
) -> None:
    """Hand over some requests: both workers claim them in random order, and the first to claim owns them."""
    for source, destination in (workers, workers[::-1]):
        for request in [one for one in sorted(holds[source.worker]) if rng.random() < 0.1]:
            holds[source.worker].remove(request)
            hops[request] = hops.get(request, 0) + 1
            for one in rng.sample((source, destination), 2):
                if dispatcher.claim(claim(one, request, hops[request])).granted:
                    holds[one.worker].add(request)


def test_nothing_is_lost_or_doubled_under_random_faults() -> None:
    """Inject lost messages, restarts and migrations at random, then stop; all requests end, each once."""
    rng = random.Random(11)
    dispatcher, account = fleet()
    alive = {one.worker: one for one in (P1, P2, D1, D2)}
    hops: dict[str, int] = {}
    holds: dict[str, set[str]] = {name: set() for name in alive}
    for step in range(3_000):
        fault_free = step >= 2_000
        if not fault_free:
            dispatcher.arrive(step, rng.randint(1, 500), rng.choice((1, 20)), float(step))
            if rng.random() < 0.02:
                victim = rng.choice(sorted(alive))
                holds[victim].clear()
                alive[victim] = replace(alive[victim], incarnation=alive[victim].incarnation + 1)
            dispatcher.update_workers([one for one in alive.values() if rng.random() > 0.05], float(step))
        else:
            dispatcher.update_workers(alive.values(), float(step))
        for worker, submissions in send_batches(dispatcher).items():
            if fault_free or rng.random() > 0.1:
                holds[worker].update(submission.request.request_id for submission in submissions)
        migrate_some(rng, dispatcher, [alive["d1"], alive["d2"]], holds, hops)
        for name, one in alive.items():
            ended = [request for request in sorted(holds[name]) if rng.random() < 0.3]
            holds[name].difference_update(ended)
            kind: Literal["first_token", "finished"] = "first_token" if one.role == "prefill" else "finished"
            batch = results(
                one, *(EngineEvent(kind, request, float(step)) for request in ended), held=sorted(holds[name])
            )
            batch = replace(batch, hops={request: hops[request] for request in ended if request in hops})
            if fault_free or rng.random() > 0.1:
                dispatcher.apply_results(batch, float(step))
        dispatcher.advance_time(TICK_S, float(step))
        assert summarise(dispatcher, account).lost == 0
    summary = summarise(dispatcher, account)
    assert (summary.finished, summary.in_flight, summary.queued) == (2_000, 0, 0)
    assert summary.retried > 100
    assert summary.migrated > 100


def test_percentiles_are_exact_to_one_percent() -> None:
    latencies = Latencies()
    assert latencies.percentile_ms(0.5) is None
    for value in range(1, 1_001):
        latencies.add(float(value))
    for share in (0.5, 0.95, 0.99):
        percentile_ms = latencies.percentile_ms(share)
        assert percentile_ms is not None
        assert 1.0 <= percentile_ms / (share * 1_000) <= 1.011


def test_a_decode_worker_that_recomputes_the_cache_keeps_the_request() -> None:
    dispatcher, account = fleet(P1, D1, D2)
    name = start_decoding(dispatcher)
    assert dispatcher.claim(claim(D2, name, 1)).granted
    dispatcher.apply_results(replace(results(D2, EngineEvent("first_token", name, 400.0)), hops={name: 1}), 450.0)
    assert (dispatcher.queued, dispatcher.in_flight) == (0, 1), "d2 still holds the request"
    dispatcher.apply_results(replace(results(D2, EngineEvent("finished", name, 500.0)), hops={name: 1}), 600.0)
    summary = summarise(dispatcher, account)
    assert (summary.finished, summary.lost, summary.queued, summary.in_flight) == (1, 0, 0, 0)
