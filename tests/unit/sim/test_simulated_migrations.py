"""Migrations between simulated workers: each request has one owner at any time, for any failure."""

import pytest
from msgspec.structs import replace

from loadline.client.handover.ownership import RequestOwners
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.sim.engine import EngineEvent, EngineKnobs, Request, SimulatedEngine
from loadline.sim.serving.transfer import TransferLink
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.migration import NO_HANDOVERS, HandoverKnobs, handover_bus
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.tasks import VirtualTask
from loadline.sim.world.timeline import Timeline
from loadline.sim.world.worker import SimulatedWorker, SimulatedWorkerKnobs
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import (
    DrainCommand,
    LoadReport,
    MigrateCommand,
    MigrateReply,
    MigrationReport,
)
from loadline.wire.subjects import Subjects
from tests.support.simulated_fleets import LINEAR

SUBJECTS = Subjects("loadline")
# 1 GB per second and 1 MB per token: 1 ms for each token.
HANDOVERS = HandoverKnobs(TransferLink(1.0, 0.0, 1_000_000).live_copy)
LENGTH = 1_000


class MigrationHarness:
    """A frontend, two workers, and a leader that sends commands."""

    def __init__(self, handovers: HandoverKnobs = HANDOVERS, kv_blocks: int = 1_000) -> None:
        self.timeline = Timeline()
        self.bus, self.peers, self.store = (
            VirtualBus(self.timeline),
            VirtualBus(self.timeline, purpose="peers"),
            VirtualStore(self.timeline),
        )
        self.owners = RequestOwners()
        self.reports: list[MigrationReport] = []
        self.samples: dict[str, WorkerSample] = {}
        self.ended: list[str] = []
        self.frontend = self.peers.connection()
        self.asking = self.bus.connection()
        self.handovers = handovers
        self.kv_blocks = kv_blocks
        VirtualTask(handover_bus(self.frontend).serve_frontend("m", self.owners.answer))
        self.bus.subscribe(self.asking, SUBJECTS.all_of("migration"), self._reported)
        self.bus.subscribe(self.asking, SUBJECTS.all_of("load"), self._sampled)
        self.a, self.b = self.worker("a"), self.worker("b")
        self.pass_ms(100.0)

    def worker(self, name: str, incarnation: int = 1) -> SimulatedWorker:
        return SimulatedWorker(
            self.timeline,
            WorkerRecord("m", "p", name, "decode", incarnation),
            SimulatedEngine(EngineKnobs("decode", self.kv_blocks), LINEAR),
            self.bus.connection(),
            self.store.connection(),
            peers=self.peers.connection(),
            knobs=SimulatedWorkerKnobs(handovers=self.handovers),
            on_event=self._happened,
            on_change=lambda _worker: None,
        )

    def _happened(self, worker: SimulatedWorker, event: EngineEvent) -> None:
        if event.kind == "finished":
            assert self.owner(event.request_id) == worker.record.worker
            self.owners.end(event.request_id)
            self.ended.append(event.request_id)

    def _reported(self, _subject: str, payload: bytes) -> None:
        report = decode_as(MigrationReport, payload)
        assert not isinstance(report, Rejected)
        self.reports.append(report)

    def _sampled(self, _subject: str, payload: bytes) -> None:
        report = decode_as(LoadReport, payload)
        assert not isinstance(report, Rejected)
        self.samples[report.worker] = report.samples[-1]

    def pass_ms(self, wait_ms: float) -> None:
        """Advance the time; assert that no two workers run the same request."""
        until_ms = self.timeline.now_ms + wait_ms
        while self.timeline.now_ms < until_ms:
            self.timeline.run_until(min(self.timeline.now_ms + 1.0, until_ms))
            runs = [name for worker in (self.a, self.b) if worker.alive for name in running(worker)]
            assert len(runs) == len(set(runs))

    def give(self, name: str, worker: SimulatedWorker, isl_tokens: int = LENGTH, osl_tokens: int = 2_000) -> None:
        hop = self.owners.assign(name, worker.record.worker, worker.record.incarnation)
        assert worker.submit(Request(name, isl_tokens, osl_tokens, 1, prefilled=True, hop=hop))

    def owner(self, name: str) -> str:
        owner = self.owners.owner(name)
        return owner.worker if owner else ""

    def command(self, number: int = 1, **changes: object) -> list[MigrateReply]:
        """Command to migrate all requests from a to b; return the answer of the first 10 ms."""
        ends = (MigrationEndpoint("p", "a", 1), MigrationEndpoint("p", "b", 1))
        command = MigrateCommand(
            str(number), "m", 7, *ends, "test", "NUM_REQ", "LCR", -1, requests_max=4, ttl_ms=20_000
        )
        command = replace(command, **changes)
        replies: list[MigrateReply] = []

        async def request_command() -> None:
            reply = decode_as(
                MigrateReply, await self.asking.request(SUBJECTS.migrate("m", "p", "a"), encode(command), 1.0)
            )
            assert not isinstance(reply, Rejected)
            replies.append(reply)

        VirtualTask(request_command())
        self.pass_ms(10.0)
        return replies

    @property
    def phases(self) -> list[str]:
        return [one.phase for one in self.reports]


def running(worker: SimulatedWorker) -> list[str]:
    return [one.request_id for one in worker.engine.migratable_requests()]


def test_requests_continue_during_a_migration_and_end_at_the_destination() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a)
    harness.give("y", harness.a)
    harness.pass_ms(50.0)
    assert [(one.accepted, one.requests) for one in harness.command()] == [(True, 2)]
    assert running(harness.a) == ["x", "y"]  # the requests continue
    harness.pass_ms(5_000.0)
    assert (running(harness.a), sorted(running(harness.b)), harness.owner("x")) == ([], ["x", "y"], "b")
    assert harness.phases[:4] == ["admitted", "copying", "admitted", "copying"]
    assert harness.phases[4:] == ["switched", "switched", "done", "done", "done"]
    last = harness.reports[-1]
    assert (last.moved, last.failed, last.requests) == (2, 0, 2)
    assert last.tokens > 2 * LENGTH
    harness.pass_ms(60_000.0)
    assert sorted(harness.ended) == ["x", "y"]
    assert harness.b.engine._batch.kv_tokens() == 0


def test_a_request_pauses_only_for_the_last_stage_of_its_copy() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a)
    harness.command()
    was_here = 0
    for _ in range(1_500):
        harness.pass_ms(1.0)
        was_here += running(harness.a) == ["x"]
    assert 990 <= was_here <= 1_100  # a thousand tokens of 1 ms each, and those generated meanwhile
    (x,) = harness.b.engine.migratable_requests()
    assert x.hops == 1
    assert x.output_tokens > 100


def test_workers_report_their_free_slots() -> None:
    harness = MigrationHarness()
    for number in range(6):
        harness.give(f"r{number}", harness.a)
    harness.command()
    harness.pass_ms(1_000.0)
    a, b = harness.samples["a"], harness.samples["b"]
    assert (a.migration_slots_in, a.migration_slots_out) == (4, 0)
    assert (b.migration_slots_in, b.migration_slots_out) == (0, 4)
    assert [one.reason for one in harness.command(2)] == ["no_slots"]
    harness.pass_ms(20_000.0)
    assert harness.samples["b"].migration_slots_in == 4


def test_a_draining_worker_is_drained_after_all_requests_have_migrated() -> None:
    harness = MigrationHarness()
    for number in range(6):
        harness.give(f"r{number}", harness.a, osl_tokens=5_000)
    drain = DrainCommand("d", "m", "p", "a", "decode", 1, 7, 60_000)
    VirtualTask(harness.asking.request(SUBJECTS.drain("m", "p", "a"), encode(drain), 1.0))
    harness.pass_ms(10.0)
    assert harness.samples["a"].migration_slots_in == 0
    assert harness.samples["a"].migration_slots_out == 6
    for number in (1, 2):
        assert harness.command(number)[0].accepted
        harness.pass_ms(4_000.0)
    assert not harness.a.alive
    assert sorted(running(harness.b)) == [f"r{number}" for number in range(6)]


def test_a_worker_that_cannot_hand_over_refuses() -> None:
    harness = MigrationHarness(NO_HANDOVERS)
    harness.give("x", harness.a)
    assert [one.reason for one in harness.command()] == ["unsupported"]
    harness.pass_ms(1_000.0)
    assert harness.samples["a"].migration_slots_out is None


def test_a_destination_without_room_reserves_nothing() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a)
    harness.b.migration.refuses_room = True
    harness.command()
    harness.pass_ms(5_000.0)
    assert (running(harness.a), harness.owner("x")) == (["x"], "a")
    assert (harness.reports[-1].phase, harness.reports[-1].reason) == ("aborted", "destination_refused")


def test_a_request_that_can_never_fit_is_refused() -> None:
    harness = MigrationHarness()
    harness.b.engine = SimulatedEngine(EngineKnobs("decode", 100), LINEAR)
    harness.give("x", harness.a, isl_tokens=100, osl_tokens=3_000)
    harness.command()
    harness.pass_ms(5_000.0)
    assert running(harness.a) == ["x"]
    assert (harness.reports[-1].phase, harness.reports[-1].reason) == ("aborted", "destination_refused")


def test_a_preempted_request_keeps_its_tokens_when_it_migrates() -> None:
    harness = MigrationHarness(kv_blocks=150)
    for number in range(4):
        harness.give(f"r{number}", harness.a, isl_tokens=500, osl_tokens=1_500)
    harness.pass_ms(3_000.0)
    progress = {name: held.generated_tokens for name, held in harness.a.engine._sequences.items() if not held.cached}
    assert max(progress.values()) > 50
    assert harness.command(order="FCW", value=4)[0].requests == len(progress)
    harness.pass_ms(20.0)
    came = {name: held.request for name, held in harness.b.engine._sequences.items()}
    assert {name: request.generated_tokens for name, request in came.items()} == progress
    assert not any(request.prefilled for request in came.values())
    harness.pass_ms(60_000.0)
    assert len(harness.ended) == 4


def test_a_copy_that_hangs_is_withdrawn_at_the_deadline_and_releases_its_slots() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a, osl_tokens=5_000)
    harness.a.migration.copies_hang = True
    harness.command(ttl_ms=2_000)
    harness.pass_ms(1_900.0)
    assert harness.phases == ["admitted", "copying"]
    harness.pass_ms(4_000.0)
    assert (harness.reports[-1].phase, harness.reports[-1].reason) == ("aborted", "deadline")
    assert running(harness.a) == ["x"]
    assert (harness.samples["a"].migration_slots_out, harness.samples["b"].migration_slots_in) == (4, 4)


def test_a_request_that_ends_before_its_copy_is_not_migrated() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a, osl_tokens=20)
    harness.command()
    harness.pass_ms(5_000.0)
    assert harness.ended == ["x"]
    assert (harness.reports[-1].phase, harness.reports[-1].reason) == ("aborted", "finished")


def switching(harness: MigrationHarness) -> None:
    """Advance a migration to the point at which no worker runs the request."""
    harness.command()
    for _ in range(3_000):
        harness.pass_ms(1.0)
        if harness.a.held_requests.unresolved():
            return
    raise AssertionError("it never stopped")


def test_a_request_stays_at_the_source_if_the_destination_dies_before_the_handover() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a)
    switching(harness)
    harness.b.kill()
    harness.pass_ms(5_000.0)
    assert (running(harness.a), harness.owner("x")) == (["x"], "a")
    assert harness.reports[-1].reason == "destination_lost"


@pytest.mark.parametrize("wait_ms", range(8))
def test_a_destination_partitioned_during_the_handover_leaves_one_owner(wait_ms: int) -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a, osl_tokens=5_000)
    switching(harness)
    harness.pass_ms(float(wait_ms) / 2)
    harness.b.peers.set_partitioned(partitioned=True)
    harness.pass_ms(10_000.0)
    owner = harness.owner("x")
    harness.b.peers.set_partitioned(partitioned=False)
    harness.pass_ms(10_000.0)
    assert harness.owner("x") == owner
    assert {"a": running(harness.a), "b": running(harness.b)} == {"a": [], "b": []} | {owner: ["x"]}
    assert harness.reports[-1].phase == ("done" if owner == "b" else "aborted")


def test_no_worker_runs_the_request_until_the_frontend_answers() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a)
    switching(harness)
    harness.frontend.set_partitioned(partitioned=True)
    harness.pass_ms(30_000.0)
    assert running(harness.a) == running(harness.b) == []
    harness.frontend.set_partitioned(partitioned=False)
    harness.pass_ms(60_000.0)
    assert harness.ended == ["x"]


def test_commands_of_an_earlier_leader_and_for_another_incarnation_are_refused() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a)
    assert [one.reason for one in harness.command(1, source=MigrationEndpoint("p", "a", 0))] == ["gone"]
    assert harness.command(2, source=MigrationEndpoint("p", "a", 2)) == []  # that incarnation would answer
    harness.command(3, epoch=9, value=0)
    assert [one.reason for one in harness.command(4, epoch=8)] == ["stale_epoch"]


def test_a_repeated_command_has_no_effect() -> None:
    harness = MigrationHarness()
    harness.give("x", harness.a)
    assert harness.command() == harness.command()
    harness.pass_ms(5_000.0)
    assert harness.phases == ["admitted", "copying", "switched", "done", "done", "done"]
    assert harness.command()[0].accepted
    harness.pass_ms(3_000.0)
    assert len(harness.phases) == 6
