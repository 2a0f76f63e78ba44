"""Workers that a source registers: their lives, drains and takeovers, on a bus and a store in memory."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from structlog.testing import capture_logs

from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.sources.config import RegisteringKnobs
from loadline.sources.workers import LatestSamples, SourcedWorkers
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply, LoadReport, MigrateCommand, MigrateReply
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryBus, MemoryStore
from tests.waiting import until

KEYS, SUBJECTS = Keys("default"), Subjects("loadline")


class Source:
    """A source, and the agent's side of its bus and store."""

    def __init__(self, store: MemoryStore, workers_max: int = 1_000) -> None:
        self.bus = MemoryBus()
        self.store = store
        self.now_s = 100.0
        knobs = RegisteringKnobs(report_interval_ms=50, lost_after_s=10, workers_max=workers_max)
        self.workers = SourcedWorkers(knobs, "source", bus=self.bus, store=store, clock=lambda: self.now_s)

    def hear(
        self, worker: str, incarnation: int = 1, waiting: int | None = 0, role: str = "prefill", read_ms: int = 0
    ) -> None:
        record = WorkerRecord("m", "p", worker, role, incarnation)  # type: ignore[arg-type]
        self.workers.heard(record, LatestSamples)
        engine = self.workers.engine(record.names)
        if isinstance(engine, LatestSamples):
            engine.put([WorkerSample(0, read_ms, waiting_requests=waiting, running_requests=0)])

    async def drain(self, worker: str, ttl_ms: int = 60_000) -> None:
        command = DrainCommand("d", "m", "p", worker, "prefill", 1, 1, ttl_ms)
        answer = await self.bus.request(SUBJECTS.drain("m", "p", worker), encode(command), 5)
        assert msgspec.json.decode(answer, type=DrainReply).accepted

    def is_drained(self, worker: str) -> bool:
        return any(subject == SUBJECTS.drained("m", "p", worker) for subject, _ in self.bus.published)

    def registered(self, worker: str) -> WorkerRecord | None:
        entry = self.store.server.keys.get(KEYS.worker("m", "p", worker))
        return msgspec.json.decode(entry.value, type=WorkerRecord) if entry else None

    def ready(self, worker: str, incarnation: int = 1) -> bool:
        record = self.registered(worker)
        return record is not None and (record.state, record.incarnation) == ("ready", incarnation)

    def sequences(self, worker: str) -> list[int]:
        subject = SUBJECTS.load("m", "p", worker)
        reports = [data for name, data in self.bus.published if name == subject]
        return [one.sequence for data in reports for one in msgspec.json.decode(data, type=LoadReport).samples]

    async def reports(self, worker: str, count: int) -> None:
        await until(lambda: len(self.sequences(worker)) >= count, "reports")


def run(scenario: Callable[[Source], Awaitable[None]], workers_max: int = 1_000) -> MemoryStore:
    store = MemoryStore()

    async def whole() -> None:
        source = Source(store, workers_max)
        async with source.workers:
            await scenario(source)

    asyncio.run(whole())
    return store


def test_a_worker_is_registered_and_reported_once_for_each_figure() -> None:
    async def scenario(source: Source) -> None:
        source.hear("w")
        await until(lambda: source.ready("w") and source.sequences("w"), "registered and reported")
        for count in range(1, 4):
            source.hear("other")
            await source.reports("other", count)
        assert len(source.sequences("w")) == 1, "silence is not zero"

    run(scenario)


def test_a_worker_is_removed_only_if_another_one_was_heard_long_after_it() -> None:
    async def scenario(source: Source) -> None:
        source.hear("a")
        source.hear("b")
        await until(lambda: source.ready("a") and source.ready("b"), "registered")
        source.now_s += 3_600
        source.workers.remove_silent()
        assert len(source.workers.names) == 2, "an outage removes nobody"
        source.hear("a")
        source.workers.remove_silent()
        await until(lambda: source.registered("b") is None, "the silent one is removed")
        assert source.ready("a")

    run(scenario)


def test_workers_whose_upstream_is_away_stay_while_others_are_heard() -> None:
    async def scenario(source: Source) -> None:
        source.hear("a")
        record = WorkerRecord("m", "other", "b", "decode", 1)
        source.workers.heard(record, LatestSamples)
        source.workers.set_away("m", "other", is_away=True)
        source.now_s += 3_600
        source.hear("a")
        source.workers.remove_silent()
        source.workers.set_away("m", "p", is_away=True)
        source.workers.set_away("m", "other", is_away=False)
        source.now_s += 20
        source.workers.remove_silent()
        assert len(source.workers.names) == 2, "the other pool was heard when its upstream was back"
        source.workers.set_away("m", "p", is_away=False)
        source.workers.remove_silent()
        assert source.workers.names == [("m", "p", "a")]

    run(scenario)


def test_a_lost_worker_leaves_although_its_upstream_comes_and_goes() -> None:
    async def scenario(source: Source) -> None:
        source.hear("a")
        source.hear("lost")
        for _ in range(3):
            source.now_s += 1
            source.workers.set_away("m", "p", is_away=True)
            source.now_s += 60
            source.workers.set_away("m", "p", is_away=False)
            assert source.workers.names, "after an outage all have the full time"
            for _ in range(8):
                source.now_s += 1
                source.hear("a")
                source.workers.remove_silent()
        assert source.workers.names == [("m", "p", "a")]

    run(scenario)


def test_a_successor_takes_workers_over_with_rising_sequences() -> None:
    async def first(source: Source) -> None:
        source.hear("w")
        await until(lambda: source.ready("w") and source.sequences("w"), "registered")
        sequences.extend(source.sequences("w"))

    sequences: list[int] = []
    store = run(first)
    assert KEYS.worker("m", "p", "w") in store.server.keys, "the key outlives the source"

    async def second() -> None:
        source = Source(store)
        async with source.workers:
            source.hear("w")
            await until(lambda: source.sequences("w"), "reported")
            assert min(source.sequences("w")) > max(sequences)
            assert source.ready("w")

    asyncio.run(second())


def test_a_restarted_engine_is_a_new_incarnation() -> None:
    async def scenario(source: Source) -> None:
        source.hear("w", incarnation=5)
        await until(lambda: source.ready("w", 5), "registered")
        source.hear("w", incarnation=6)
        await until(lambda: source.ready("w", 6), "the later one")
        source.hear("w", incarnation=5)
        assert source.ready("w", 6), "an earlier one comes too late"

    run(scenario)


def test_a_drained_worker_is_reported_empty_when_its_engine_says_so_twice() -> None:
    async def scenario(source: Source) -> None:
        source.hear("w", waiting=2)
        await until(lambda: source.ready("w"), "registered")
        await source.drain("w")
        for waiting in (1, 0, 1, 0):
            source.hear("w", waiting=waiting)
            count = len(source.sequences("w"))
            await until(lambda: len(source.sequences("w")) > count, "a report")  # noqa: B023 - awaited at once
            assert not source.is_drained("w")
        source.hear("w", waiting=0)
        await until(lambda: source.is_drained("w"), "it is empty")
        await until(lambda: source.registered("w") is None, "and deregistered")
        source.hear("w", waiting=0)
        assert source.registered("w") is None, "it is not registered again while it ends"

    run(scenario)


def test_what_was_read_before_the_command_or_is_unknown_does_not_empty_a_worker() -> None:
    """Prometheus reads every 15 s, and routers have sent requests since."""

    async def scenario(source: Source) -> None:
        source.hear("w", read_ms=15_000)
        await until(lambda: source.ready("w"), "registered")
        await source.drain("w")
        readings: tuple[tuple[int, int | None], ...] = ((15_000, 0), (15_000, 0), (30_000, None), (45_000, 0))
        for read_ms, waiting in readings:
            source.hear("w", waiting=waiting, read_ms=read_ms)
            count = len(source.sequences("w"))
            await until(lambda: len(source.sequences("w")) > count, "a report")  # noqa: B023 - awaited at once
            assert not source.is_drained("w")
        source.hear("w", read_ms=60_000)
        await until(lambda: source.is_drained("w"), "it is empty")

    run(scenario)


def test_a_rank_that_vanishes_holds_no_drain_up() -> None:
    samples = LatestSamples()
    both = [WorkerSample(0, 0, rank=rank, waiting_requests=0, running_requests=0) for rank in (0, 1)]
    samples.put(both)
    samples.begin_drain()
    samples.put(both)
    samples.put(both[:1])
    assert samples.is_empty()
    assert [one.rank for one in samples.take_samples()] == [0]


def test_a_busy_rank_is_not_emptied_by_what_was_read_before_the_command() -> None:
    """Prometheus reads ranks 15 s apart in turn: a 0 of rank 1 from before counted again with each scrape of rank 0."""
    samples = LatestSamples()

    def put(rank_0_s: int, rank_1_s: int, running: int = 0) -> bool:
        newest_ms, oldest_ms = max(rank_0_s, rank_1_s) * 1_000, min(rank_0_s, rank_1_s) * 1_000
        both = [WorkerSample(0, newest_ms, rank=rank, waiting_requests=0, running_requests=running) for rank in (0, 1)]
        samples.put(both, oldest_ms)
        return samples.is_empty()

    put(31, 38)
    samples.begin_drain()
    assert not any([put(46, 38), put(61, 38), put(76, 38)]), "rank 1 is too busy to answer"
    assert [put(76, 83), put(91, 83), put(91, 98)] == [False, False, True], "each was read twice"
    assert [put(106, 98, running=1), put(106, 113), put(121, 113)] == [False] * 3, "requests count at once"
    assert put(121, 128)


def test_more_workers_than_allowed_are_refused_with_an_error() -> None:
    async def scenario(source: Source) -> None:
        for number in range(50):
            source.hear(f"w{number}")
        assert len(source.workers.names) == 3

    with capture_logs() as lines:
        run(scenario, workers_max=3)
    assert [line["log_level"] for line in lines if line["event"] == "workers_full"][:1] == ["error"]


def test_without_a_handler_migrations_are_refused() -> None:
    async def scenario(source: Source) -> None:
        source.hear("w")
        await until(lambda: source.ready("w"), "registered")
        end = MigrationEndpoint("p", "w", 1)
        command = MigrateCommand(
            command_id="c",
            model="m",
            epoch=1,
            source=end,
            destination=MigrationEndpoint("p", "x", 1),
            trigger="drain",
            rule="NUM_REQ",
            order="LR",
            value=1,
            ttl_ms=1_000,
        )
        answer = await source.bus.request(SUBJECTS.migrate("m", "p", "w"), encode(command), 5)
        assert msgspec.json.decode(answer, type=MigrateReply).reason == "unsupported"

    run(scenario)
