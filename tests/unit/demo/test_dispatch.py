"""The gateway's books: every request ends exactly once, whatever becomes of workers and messages."""

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
    served = RequestAccount(ObjectiveKnobs())
    roles: tuple[Role, ...] = ("prefill", "decode")
    dispatcher = Dispatcher("g", roles, served)
    dispatcher.update_workers(records, 0.0)
    return dispatcher, served


def account(dispatcher: Dispatcher, served: RequestAccount) -> DemoSummary:
    return served.summary(in_flight=dispatcher.in_flight, queued=dispatcher.queued, virtual_s=1.0, speed=1.0)


def deliver(dispatcher: Dispatcher) -> dict[str, list[Submission]]:
    dispatcher.assign()
    batches = dict(dispatcher.outboxes())
    for worker, submissions in batches.items():
        dispatcher.confirm_sent(worker, len(submissions))
    return batches


def say(
    worker: WorkerRecord, *events: EngineEvent, held: list[str] | None = None, leaving: bool = False
) -> ResultBatch:
    return ResultBatch(worker.worker, worker.incarnation, list(events), held, leaving)


def wait(dispatcher: Dispatcher, seconds: float) -> None:
    for _ in range(round(seconds / TICK_S) + 1):
        dispatcher.advance_time(TICK_S, 9_000.0)


def test_a_request_goes_through_both_roles_and_its_latencies_are_exact() -> None:
    dispatcher, served = fleet(P1, D1)
    dispatcher.arrive(1, 100, 11, at_ms=1_000.0)
    (submission,) = deliver(dispatcher)["p1"]
    assert (submission.at_ms, submission.request.prefilled) == (1_000.0, False)
    dispatcher.apply_results(say(P1, EngineEvent("first_token", submission.request.request_id, 1_400.0)), 2_000.0)
    (submission,) = deliver(dispatcher)["d1"]
    assert (submission.at_ms, submission.request.prefilled) == (1_400.0, True)
    assert submission.request.generated_tokens == 1
    dispatcher.apply_results(say(D1, EngineEvent("finished", submission.request.request_id, 1_800.0)), 2_000.0)
    (done,) = served.take_unreported()
    assert (done.ttft_ms, done.itl_ms, done.ttft_met, done.itl_met) == (400.0, 40.0, True, True)
    summary = account(dispatcher, served)
    assert (summary.finished, summary.in_flight, summary.queued, summary.lost) == (1, 0, 0, 0)


def test_the_least_loaded_ready_worker_is_taken() -> None:
    dispatcher, _ = fleet(P1, P2, record("p3", "prefill", state="draining"), record("p4", "prefill", state="starting"))
    for number, isl in enumerate((1_000, 100, 100, 100)):
        dispatcher.arrive(number, isl, 10, 0.0)
    given = deliver(dispatcher)
    assert {worker: len(submissions) for worker, submissions in given.items()} == {"p1": 1, "p2": 3}


def test_requests_are_held_until_a_worker_is_ready_and_reach_it_then() -> None:
    dispatcher, _ = fleet()
    dispatcher.arrive(1, 100, 10, at_ms=10.0)
    assert deliver(dispatcher) == {}
    assert dispatcher.queued == 1
    dispatcher.update_workers([P1], 5_000.0)
    assert deliver(dispatcher)["p1"][0].at_ms == 5_000.0


def test_a_silent_worker_loses_its_requests_and_late_results_count_once() -> None:
    dispatcher, served = fleet(P1, P2)
    dispatcher.arrive(1, 100, 1, 0.0)
    first = deliver(dispatcher)["p1"][0].request.request_id
    wait(dispatcher, SILENT_S)
    second = deliver(dispatcher)["p2"][0].request.request_id
    assert first != second
    for worker, request in ((P1, first), (P2, second), (P2, second)):
        dispatcher.apply_results(say(worker, EngineEvent("first_token", request, 100.0)), 9_000.0)
    summary = account(dispatcher, served)
    assert (summary.finished, summary.retried, summary.lost) == (1, 1, 0)


def test_a_pause_of_the_gateway_is_not_the_workers_silence() -> None:
    dispatcher, served = fleet(P1, P2)
    dispatcher.arrive(1, 100, 1, 0.0)
    deliver(dispatcher)
    dispatcher.advance_time(60.0, 9_000.0)
    assert served.retried == 0


def test_who_vanishes_from_the_registry_gets_nothing_new_but_may_finish() -> None:
    dispatcher, served = fleet(P1)
    dispatcher.arrive(1, 100, 1, 0.0)
    name = deliver(dispatcher)["p1"][0].request.request_id
    dispatcher.update_workers([], 100.0)
    dispatcher.arrive(2, 100, 1, 0.0)
    assert deliver(dispatcher) == {}
    dispatcher.apply_results(say(P1, EngineEvent("first_token", name, 50.0)), 9_000.0)
    assert (served.finished, served.retried, dispatcher.queued) == (1, 0, 1)


def test_a_new_incarnation_and_a_leaving_worker_lose_their_requests_at_once() -> None:
    dispatcher, served = fleet(P1)
    dispatcher.arrive(1, 100, 1, 0.0)
    deliver(dispatcher)
    reborn = record("p1", "prefill", incarnation=2)
    dispatcher.update_workers([reborn], 100.0)
    assert served.retried == 1
    deliver(dispatcher)
    dispatcher.apply_results(say(reborn, leaving=True), 200.0)
    assert (served.retried, dispatcher.queued, dispatcher.complete) == (2, 1, False)


def test_what_a_worker_does_not_hold_was_lost_on_the_way() -> None:
    dispatcher, served = fleet(P1)
    for number in (1, 2):
        dispatcher.arrive(number, 100, 1, 0.0)
    arrived, _ = (submission.request.request_id for submission in deliver(dispatcher)["p1"])
    dispatcher.apply_results(say(P1, held=[arrived]), 0.0)
    assert served.retried == 0  # it may still be under way
    for _ in range(5):
        wait(dispatcher, 1.0)
        dispatcher.apply_results(say(P1, held=[arrived]), 0.0)
    assert (served.retried, dispatcher.queued, dispatcher.in_flight) == (1, 1, 1)


def test_what_never_fits_is_counted_as_lost() -> None:
    dispatcher, served = fleet(P1)
    dispatcher.arrive(1, 100, 1, 0.0)
    name = deliver(dispatcher)["p1"][0].request.request_id
    dispatcher.apply_results(say(P1, EngineEvent("refused", name, 0.0)), 0.0)
    summary = account(dispatcher, served)
    assert (summary.lost, summary.refused) == (1, 1)


def decoding(dispatcher: Dispatcher, osl_tokens: int = 11) -> str:
    """A request that has come to ``d1``; gives its name there."""
    dispatcher.arrive(1, 100, osl_tokens, 0.0)
    name = deliver(dispatcher)["p1"][0].request.request_id
    dispatcher.apply_results(say(P1, EngineEvent("first_token", name, 100.0)), 200.0)
    return deliver(dispatcher)["d1"][0].request.request_id


def claim(worker: WorkerRecord, name: str, hop: int) -> ClaimRequest:
    return ClaimRequest(name, worker.worker, worker.incarnation, hop)


def test_a_request_that_was_claimed_ends_at_its_new_owner_and_what_the_former_one_says_is_void() -> None:
    dispatcher, served = fleet(P1, D1, D2)
    name = decoding(dispatcher)
    ours = ClaimReply(granted=True, worker="d2", incarnation=1)
    assert dispatcher.claim(claim(D2, name, 1)) == ours
    assert dispatcher.claim(claim(D2, name, 1)) == ours, "asked again"
    assert dispatcher.claim(claim(D1, name, 1)) == ClaimReply(granted=False, worker="d2", incarnation=1)
    finished = EngineEvent("finished", name, 500.0)
    dispatcher.apply_results(say(D1, finished), 600.0)
    dispatcher.apply_results(say(D2, finished), 600.0)
    assert (served.finished, served.migrated) == (0, 1), "of hop 0"
    dispatcher.apply_results(replace(say(D2, finished), hops={name: 1}), 600.0)
    dispatcher.apply_results(replace(say(D2, finished), hops={name: 1}), 600.0)
    summary = account(dispatcher, served)
    assert (summary.finished, summary.migrated, summary.retried, summary.lost) == (1, 1, 0, 0)
    assert dispatcher.claim(claim(D1, name, 2)) == ClaimReply(granted=False), "it is over"


def test_a_source_that_has_its_request_again_has_not_moved_it() -> None:
    dispatcher, served = fleet(P1, D1, D2)
    name = decoding(dispatcher)
    assert dispatcher.claim(claim(D1, name, 1)).granted
    assert dispatcher.claim(claim(D2, name, 1)) == ClaimReply(granted=False, worker="d1", incarnation=1)
    dispatcher.apply_results(replace(say(D1, EngineEvent("finished", name, 500.0)), hops={name: 1}), 600.0)
    assert (served.finished, served.migrated) == (1, 0)


def test_who_is_not_known_owns_nothing() -> None:
    dispatcher, _ = fleet(P1, D1)
    name = decoding(dispatcher)
    d1 = ClaimReply(granted=False, worker="d1", incarnation=1)
    assert dispatcher.claim(claim(D2, name, 1)) == d1
    assert dispatcher.claim(claim(record("d1", "decode", incarnation=2), name, 1)) == d1
    assert dispatcher.claim(claim(D1, "other", 1)) == ClaimReply(granted=False)


def test_a_request_whose_new_owner_dies_starts_again_and_no_old_claim_reaches_it() -> None:
    dispatcher, served = fleet(P1, D1, D2)
    name = decoding(dispatcher)
    assert dispatcher.claim(claim(D2, name, 1)).granted
    dispatcher.apply_results(say(D1, held=[]), 300.0)
    wait(dispatcher, 2.5)
    dispatcher.apply_results(say(D1, held=[]), 300.0)
    assert served.retried == 0, "its former owner need not have it"
    dispatcher.apply_results(say(D2, leaving=True), 400.0)
    assert (served.retried, dispatcher.queued) == (1, 1)
    assert dispatcher.claim(claim(D1, name, 2)) == ClaimReply(granted=False)


def test_the_load_of_workers_follows_what_moves() -> None:
    dispatcher, _ = fleet(P1, D1, D2)
    name = decoding(dispatcher)
    dispatcher.claim(claim(D2, name, 1))
    assert decoding(dispatcher), "the next one goes to who gave it away"


def move(
    rng: random.Random,
    dispatcher: Dispatcher,
    workers: list[WorkerRecord],
    holds: dict[str, set[str]],
    hops: dict[str, int],
) -> None:
    """Some requests are handed over; who of the two is heard first has them, the other one has lost."""
    for source, destination in (workers, workers[::-1]):
        for request in [one for one in sorted(holds[source.worker]) if rng.random() < 0.1]:
            holds[source.worker].remove(request)
            hops[request] = hops.get(request, 0) + 1
            for one in rng.sample((source, destination), 2):
                if dispatcher.claim(claim(one, request, hops[request])).granted:
                    holds[one.worker].add(request)


def test_nothing_is_lost_or_doubled_under_random_faults() -> None:
    """Lost messages, deaths, rebirths, leavings and moves at random; then calm: all requests end, each once."""
    rng = random.Random(11)
    dispatcher, served = fleet()
    alive = {one.worker: one for one in (P1, P2, D1, D2)}
    hops: dict[str, int] = {}
    holds: dict[str, set[str]] = {name: set() for name in alive}
    for turn in range(3_000):
        calm = turn >= 2_000
        if not calm:
            dispatcher.arrive(turn, rng.randint(1, 500), rng.choice((1, 20)), float(turn))
            if rng.random() < 0.02:
                victim = rng.choice(sorted(alive))
                holds[victim].clear()
                alive[victim] = replace(alive[victim], incarnation=alive[victim].incarnation + 1)
            dispatcher.update_workers([one for one in alive.values() if rng.random() > 0.05], float(turn))
        else:
            dispatcher.update_workers(alive.values(), float(turn))
        for worker, submissions in deliver(dispatcher).items():
            if calm or rng.random() > 0.1:
                holds[worker].update(submission.request.request_id for submission in submissions)
        move(rng, dispatcher, [alive["d1"], alive["d2"]], holds, hops)
        for name, one in alive.items():
            ended = [request for request in sorted(holds[name]) if rng.random() < 0.3]
            holds[name].difference_update(ended)
            kind: Literal["first_token", "finished"] = "first_token" if one.role == "prefill" else "finished"
            batch = say(one, *(EngineEvent(kind, request, float(turn)) for request in ended), held=sorted(holds[name]))
            batch = replace(batch, hops={request: hops[request] for request in ended if request in hops})
            if calm or rng.random() > 0.1:
                dispatcher.apply_results(batch, float(turn))
        dispatcher.advance_time(TICK_S, float(turn))
        assert account(dispatcher, served).lost == 0
    summary = account(dispatcher, served)
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


def test_a_request_that_came_without_its_cache_is_not_handed_over_again_by_the_decode_worker_that_computes_it() -> None:
    dispatcher, served = fleet(P1, D1, D2)
    name = decoding(dispatcher)
    assert dispatcher.claim(claim(D2, name, 1)).granted
    dispatcher.apply_results(replace(say(D2, EngineEvent("first_token", name, 400.0)), hops={name: 1}), 450.0)
    assert (dispatcher.queued, dispatcher.in_flight) == (0, 1), "it is at one place"
    dispatcher.apply_results(replace(say(D2, EngineEvent("finished", name, 500.0)), hops={name: 1}), 600.0)
    summary = account(dispatcher, served)
    assert (summary.finished, summary.lost, summary.queued, summary.in_flight) == (1, 0, 0, 0)
