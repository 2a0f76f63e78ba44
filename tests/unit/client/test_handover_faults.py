"""Handovers of requests between workers while messages are lost, late and repeated, copies fail and workers die.

Each runs at one worker at most, and once messages arrive it runs at its owner, and nothing is left behind.
"""

from collections.abc import Callable
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loadline.client.handover import effects as ef
from loadline.client.handover.executor import EffectExecutor
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import HandedRequest
from loadline.client.handover.migrator import FreeSlots, RequestMigrator
from loadline.client.handover.ownership import RequestOwners
from loadline.client.handover.source import StoppedRequest
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.messages import MigrateCommand, MigrationReport

Call = Callable[[], object]
REQUESTS = ("r", "s")
NAMES = st.sampled_from(["a", "b", "c"])


class Worker(EffectExecutor):
    """Incarnation of a worker; the fleet decides when its messages and timers take effect."""

    def __init__(self, fleet: "Fleet", name: str, incarnation: int) -> None:
        super().__init__()
        self.fleet, self.name, self.incarnation = fleet, name, incarnation
        self.held = HeldRequests()
        self.migrator = RequestMigrator(WorkerRecord("m", "p", name, "decode", incarnation), self.held, slots_in=2)
        self.running: dict[str, HandedRequest] = {}
        self.reports: list[MigrationReport] = []
        self.transfers: set[ef.Transfer] = set()
        self.rooms: list[ef.ExpireRoom] = []
        self.replies: dict[tuple[str, int], list[Call]] = {}
        self.dead = False

    def later(self, call: Call) -> None:
        self.fleet.pending.append((self, call))

    def exchange(self, send: Callable[[Callable[[object], None]], None], on_reply: Callable[[object], object]) -> None:
        """Send a message; the sender receives one answer or, in the end, a timeout."""
        self.fleet.send(self, send, on_reply)

    def ask_room(self, effect: ef.AskRoom) -> None:
        self.transfers.add(effect.transfer)

        def send(answer: Callable[[object], None]) -> None:
            its = self.fleet.workers[effect.worker]
            if its.migrator.destination.is_addressed(effect.message.incarnation):
                reply, effects = its.migrator.destination.on_room_request(effect.message, fits=True)
                its.execute(effects)
                answer(reply)

        def on_reply(reply: object) -> None:
            self.execute(self.migrator.source.on_room_reply(effect.transfer, reply, self.fleet.now_ms))  # type: ignore[arg-type]

        self.exchange(send, on_reply)

    def release_room(self, effect: ef.ReleaseRoom) -> None:
        def send(_answer: Callable[[object], None]) -> None:
            its = self.fleet.workers[effect.worker]
            if its.migrator.destination.is_addressed(effect.message.incarnation):
                its.migrator.destination.on_room_request(effect.message, fits=True)

        self.exchange(send, lambda _reply: None)

    def start_copy(self, effect: ef.StartCopy) -> None:
        self.later(lambda: self.execute(self.migrator.source.on_copied(effect.transfer, self.fleet.now_ms)))

    def cancel_copy(self, effect: ef.CancelCopy) -> None:
        self.later(lambda: self.execute(self.migrator.source.on_failure(effect.transfer, "failed", self.fleet.now_ms)))

    def stop_request(self, effect: ef.StopRequest) -> None:
        def stop() -> None:
            source, now_ms = self.migrator.source, self.fleet.now_ms
            if self.running.pop(effect.transfer.request_id, None) is None:
                self.execute(source.on_failure(effect.transfer, "finished", now_ms))
            else:
                self.execute(source.on_stopped(effect.transfer, StoppedRequest("f", b""), now_ms))

        self.later(stop)

    def send_handover(self, effect: ef.SendHandover) -> None:
        def send(answer: Callable[[object], None]) -> None:
            its = self.fleet.workers[effect.worker]
            if not its.migrator.destination.is_addressed(effect.message.incarnation):
                return
            reply, effects = its.migrator.destination.on_handover_request(effect.message, self.fleet.now_ms)
            if reply is not None:
                answer(reply)
            else:
                key = effect.message.request.request_id, effect.message.request.hop
                its.replies.setdefault(key, []).append(answer)  # type: ignore[arg-type]
            its.execute(effects)

        def on_reply(reply: object) -> None:
            self.execute(self.migrator.source.on_handover_reply(effect.transfer, reply, self.fleet.now_ms))  # type: ignore[arg-type]

        self.exchange(send, on_reply)

    def send_claim(self, effect: ef.SendClaim) -> None:
        def send(answer: Callable[[object], None]) -> None:
            answer(self.fleet.owners.answer(effect.message))

        def on_reply(reply: object) -> None:
            name, hop = effect.message.request_id, effect.message.hop
            self.execute(self.migrator.on_claim_reply(name, hop, reply, self.fleet.now_ms))  # type: ignore[arg-type]

        self.exchange(send, on_reply)

    def run_request(self, effect: ef.RunRequest) -> None:
        assert self.held.hop(effect.request.request_id) == effect.request.hop
        self.running[effect.request.request_id] = effect.request

    def discard_request(self, effect: ef.DiscardRequest) -> None:
        self.running.pop(effect.request_id, None)

    def expire_room(self, effect: ef.ExpireRoom) -> None:
        self.rooms.append(effect)

    def reply_handover(self, effect: ef.ReplyHandover) -> None:
        for answer in self.replies.pop((effect.request_id, effect.hop), []):
            answer(effect.message)  # type: ignore[call-arg]

    def publish_reports(self, effect: ef.PublishReports) -> None:
        self.reports += effect.reports

    def end_transfer(self, effect: ef.EndTransfer) -> None:
        self.transfers.remove(effect.transfer)


class Fleet(RuleBasedStateMachine):
    """A frontend with two requests, three workers, and faults between them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.owners = RequestOwners()
        self.pending: list[tuple[Worker, Call]] = []
        """Messages in transit, and work of engines."""
        self.timeouts: list[tuple[Worker, Call]] = []
        """Senders that wait for an answer."""
        self.commands = 0
        self.workers: dict[str, Worker] = {}
        self.workers = {name: Worker(self, name, 1) for name in "abc"}
        for name in REQUESTS:
            self.assign(name, "a")

    def assign(self, request_id: str, worker: str) -> None:
        its = self.workers[worker]
        hop = self.owners.assign(request_id, worker, its.incarnation)
        if its.held.assign(request_id, hop):
            its.running[request_id] = HandedRequest(request_id, "f", hop, 0, b"")

    def send(
        self, sender: Worker, send: Callable[[Callable[[object], None]], None], on_reply: Callable[[object], object]
    ) -> None:
        answered = False

        def on_answer(reply: object) -> None:
            nonlocal answered
            if not answered and not sender.dead:
                answered = True
                on_reply(reply)

        def answer(reply: object) -> None:
            self.pending.append((sender, partial(on_answer, reply)))

        self.pending.append((sender, partial(send, answer)))
        self.timeouts.append((sender, partial(on_answer, None)))

    @rule(source=NAMES, destination=NAMES, ttl_ms=st.sampled_from([50, 500]))
    def command(self, source: str, destination: str, ttl_ms: int) -> None:
        self.commands += 1
        a, b = self.workers[source], self.workers[destination]
        ends = MigrationEndpoint("p", source, a.incarnation), MigrationEndpoint("p", destination, b.incarnation)
        command = MigrateCommand(
            f"c{self.commands}", "m", 1, *ends, "t", "NUM_REQ", "FCR", -1.0, requests_max=2, hops_max=99, ttl_ms=ttl_ms
        )
        queue = [MigratableRequest(one.request_id, 10, 1, hops=one.migrations) for one in a.running.values()]
        a.migrator.answer(command, queue, self.now_ms)
        a.execute(a.migrator.source.begin(command.command_id))

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), repeated=st.booleans())
    def deliver_event(self, data: st.DataObject, repeated: bool) -> None:  # noqa: FBT001 - drawn
        """Deliver a pending message or engine event: late, in another order, or twice."""
        place = data.draw(st.integers(0, len(self.pending) - 1))
        worker, call = self.pending[place] if repeated else self.pending.pop(place)
        if not worker.dead:
            call()

    @precondition(lambda self: self.pending)
    @rule(count=st.integers(1, 6))
    def complete_all(self, count: int) -> None:
        for _ in range(min(count, len(self.pending))):
            worker, call = self.pending.pop(0)
            if not worker.dead:
                call()

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Lose a message; its sender gets a timeout."""
        place = data.draw(st.integers(0, len(self.pending) - 1))
        if self.pending[place][1].__class__ is partial:
            self.pending.pop(place)

    @precondition(lambda self: self.timeouts)
    @rule()
    def time_out(self) -> None:
        worker, call = self.timeouts.pop(0)
        if not worker.dead:
            call()

    @rule(wait_ms=st.sampled_from([1, 100, 1_000]))
    def wait(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        for worker in self.workers.values():
            worker.execute(worker.migrator.tick(self.now_ms))

    @rule(name=NAMES)
    def expire(self, name: str) -> None:
        worker = self.workers[name]
        while worker.rooms:
            room = worker.rooms.pop()
            worker.migrator.destination.on_room_expired(room.request_id, room.reservation)

    @rule(name=NAMES)
    def die(self, name: str) -> None:
        """Restart a worker without its state; the frontend gives its requests to another one."""
        self.workers[name].dead = True
        incarnation = self.workers[name].incarnation
        self.workers[name] = Worker(self, name, incarnation + 1)
        for request_id in REQUESTS:
            owner = self.owners.owner(request_id)
            if owner is not None and (owner.worker, owner.incarnation) == (name, incarnation):
                self.assign(request_id, "b" if name == "a" else "a")

    def deliver(self, calls: list[tuple[Worker, Call]]) -> None:
        while calls:
            worker, call = calls.pop(0)
            if not worker.dead:
                call()

    @invariant()
    def one_worker_runs_a_request(self) -> None:
        for request_id in REQUESTS:
            runs = [
                (worker.name, worker.incarnation, worker.running[request_id].hop)
                for worker in self.workers.values()
                if request_id in worker.running and worker.held.hop(request_id) is not None
            ]
            owner = self.owners.owner(request_id)
            assert owner is not None
            assert len(runs) <= 1
            assert all(one == (owner.worker, owner.incarnation, owner.hop) for one in runs)

    def teardown(self) -> None:
        """Deliver all messages and answers, then time out the lost ones."""
        for _ in range(50):
            self.wait(1_000)
            self.deliver(self.pending)
            waiting, self.timeouts = self.timeouts, []
            self.deliver(waiting)
        for name in "abc":
            self.expire(name)
        self.one_worker_runs_a_request()
        for request_id in REQUESTS:
            assert [1 for worker in self.workers.values() if request_id in worker.running], f"{request_id} is lost"
        for worker in self.workers.values():
            assert not worker.transfers, "a migration does not end"
            assert not worker.held.unresolved(), "a request stays without an owner"
            assert worker.migrator.free_slots(9) == FreeSlots(2, 4), "a slot is not released"
            finals = {report.command_id: report for report in worker.reports if report.phase in ("done", "aborted")}
            assert {report.command_id for report in worker.reports} == set(finals)
            assert all(report.moved + report.failed == report.requests for report in finals.values())


Fleet.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestHandoverFaults = Fleet.TestCase
