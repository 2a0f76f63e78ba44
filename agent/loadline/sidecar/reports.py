"""Reports of what an engine's readings say: the worker's load, and on request its traffic."""

from loadline.client.resources import publish_now
from loadline.client.streams import StreamEngine
from loadline.client.worker import WorkerClient
from loadline.core.vocabulary.samples import WorkerSample
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.ports import Bus
from loadline.sidecar.stream_load import with_unmovable
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects


class EngineReports:
    """Reports of one engine, over all of its starts.

    Args:
        root: Prefix of every NATS subject.
        with_traffic: Report the engine's requests as traffic too.
    """

    def __init__(self, root: str, *, with_traffic: bool) -> None:
        self.streams: StreamEngine | None = None
        """Streams of the present incarnation that can move."""
        self._subjects = Subjects(root)
        self._with_traffic = with_traffic
        self._sequence = 0
        self._unreported: list[WorkerSample] = []
        self._reporter: tuple[WorkerClient, Bus] | None = None

    def begin(self, worker: WorkerClient, bus: Bus) -> None:
        """Report for an incarnation of the worker."""
        self._reporter = worker, bus

    def end(self) -> None:
        """Report nothing until the next incarnation."""
        self._reporter = None

    def samples(self) -> list[WorkerSample]:
        """Return the samples of the newest page once: an engine that does not answer is silent."""
        samples, self._unreported = self._unreported, []
        return samples

    async def report(self, reading: EngineReading) -> None:
        """Report a reading, if the worker is registered and not drained."""
        self._unreported = reading.samples()
        if self.streams is not None:
            self._unreported = with_unmovable(self._unreported, reading, self.streams.migratable_requests())
        if self._reporter is None or self._reporter[0].drained.is_set():
            return
        worker, bus = self._reporter
        await worker.report_now()
        traffic = reading.traffic_sample(self._sequence + 1) if self._with_traffic else None
        if traffic is not None:
            self._sequence += 1
            record = worker.record
            report = TrafficReport(record.model, record.worker, record.incarnation, traffic)
            await publish_now(bus, self._subjects.traffic(record.model, record.worker), report)
