"""Sources: what Prometheus, Dynamo and Llumnix say, as far as the workers and reports that agents get of it."""

from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from loadline.adapters.grpc_calls import GrpcCalls
from loadline.adapters.http_reader import HttpReader
from loadline.adapters.redis_reader import RedisReader
from loadline.core.vocabulary.events import LoadReported, TrafficReported
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import StoreEntry, StoreSnapshot
from loadline.sources.dynamo import DynamoSource
from loadline.sources.dynamo_config import DynamoKnobs, DynamoPoolKnobs
from loadline.sources.dynamo_discovery import PREFIX, Publisher, Publishers
from loadline.sources.llumnix import METADATA_PREFIX, LlumnixSource
from loadline.sources.llumnix_config import LlumnixKnobs, LlumnixPoolKnobs
from loadline.sources.llumnix_messages import InstanceMetadata, InstanceStatus
from loadline.sources.prometheus import _FrontendSource, _PoolSource
from loadline.sources.prometheus_config import PrometheusFrontendKnobs, PrometheusKnobs, PrometheusPoolKnobs
from loadline.sources.traffic import RegisteredAddresses
from loadline.sources.workers import MigrateHandler, SourcedEngine, SourcedWorkers
from loadline.wire.codec import Codec, decode_worker_record, encode
from loadline.wire.messages import LoadReport
from loadline.wire.subjects import Subjects
from tests.fuzz.target import Target
from tests.fuzz.targets.services import loop
from tests.support.memory import MemoryBus
from tests.support.sources import envelope, forward_pass, framed

_SUBJECTS: Final = Subjects("loadline")
_CODEC: Final = Codec(_SUBJECTS, 1_048_576)
_END: Final = b"\n\0"
"""Between two answers, frames or values."""
_WORKERS_MAX: Final = 16
_PROMETHEUS_MS: Final = 3.0
"""CPU time per 16 KiB: the source does no other work, and reads pages of metrics within JSON, line by line."""


class Registered:
    """The workers that a source registers, in place of their clients."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], tuple[WorkerRecord, SourcedEngine]] = {}
        self._written: list[tuple[WorkerRecord, bytes]] = []
        self._reports: list[tuple[tuple[str, str, str], bytes]] = []

    @property
    def names(self) -> Sequence[tuple[str, str, str]]:
        return list(self._found)

    def set_away(self, model: str, pool: str, *, is_away: bool) -> None:
        """Ignore it: no worker is silent for long here."""

    def heard(
        self, record: WorkerRecord, make_engine: Callable[[], SourcedEngine], _on_migrate: MigrateHandler | None = None
    ) -> None:
        """Register a worker unless it is known."""
        if record.names not in self._found and len(self._found) < _WORKERS_MAX:
            self._found[record.names] = record, make_engine()
            self._written.append((record, encode(record)))

    def engine(self, names: tuple[str, str, str]) -> SourcedEngine | None:
        found = self._found.get(names)
        return None if found is None else found[1]

    def report(self) -> None:
        """Report the new samples of each worker."""
        for names, (record, engine) in self._found.items():
            samples = [replace(one, sequence=number) for number, one in enumerate(engine.take_samples())]
            if samples:
                self._reports.append((names, encode(LoadReport(*names, record.incarnation, samples))))

    def check(self) -> None:
        """Check that agents accept the record and the reports of each worker."""
        for record, written in self._written:
            assert decode_worker_record(("workers", *record.names), written) == record, record
        for names, report in self._reports:
            event = _CODEC.decode(_SUBJECTS.load(*names), report)
            assert isinstance(event, LoadReported), event
        for _, engine in self._found.values():
            engine.is_empty()


def _run(main: Coroutine[Any, Any, None]) -> None:
    loop().run(main)


class Answers:
    """Prometheus' side of a connection: answers in turn."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self._answers = iter(answers)

    async def get(self, _url: str, _query: dict[str, str]) -> bytes:
        return next(self._answers)


@cache
def _prometheus() -> PrometheusKnobs:
    pool = PrometheusPoolKnobs(model="m", name="p", role="aggregated", engine="vllm", traffic=True)
    frontend = PrometheusFrontendKnobs(name="f", router="vllm-router", model="m")
    return PrometheusKnobs(pools=(pool,), frontends=(frontend,), models={"tiny": "m"})


def read_prometheus(data: bytes) -> Callable[[], None]:
    """Read answers in turn to the query that the first line names: of a router, or of a pool."""
    kind, _, rest = data.partition(b"\n")
    answers, knobs = rest.split(_END)[:4], _prometheus()
    workers, bus, pages = Registered(), MemoryBus(), cast("HttpReader", Answers(answers))

    async def poll() -> None:
        if kind == b"router":
            source: _PoolSource | _FrontendSource = _FrontendSource(knobs.frontends[0], knobs, pages, _addresses(), bus)
        else:
            source = _PoolSource(knobs.pools[0], knobs, pages, cast("SourcedWorkers", workers), bus, with_series=set())
        for _ in answers:
            await source.poll()
            workers.report()

    def check() -> None:
        workers.check()
        for subject, report in bus.published:
            event = _CODEC.decode(subject, report)
            assert isinstance(event, TrafficReported), event

    _run(poll())
    return check


@cache
def _addresses() -> RegisteredAddresses:
    addresses = RegisteredAddresses()
    addresses.update("m", [WorkerRecord("m", "p", "w", "aggregated", 1, address="http://h:1")])
    return addresses


@cache
def _dynamo() -> DynamoKnobs:
    ranks, blocks = 4, 1_000
    pool = DynamoPoolKnobs(
        model="m",
        name="p",
        role="decode",
        component="backend",
        data_parallel_size=ranks,
        kv_blocks_total=blocks,
        block_size_tokens=16,
    )
    return DynamoKnobs(pools=(pool,), brokers=("tcp://h:1",))


def read_dynamo(data: bytes) -> Callable[[], None] | None:
    """Read records as the first line says: from NATS, from ZeroMQ, or those of publishers in etcd."""
    plane, _, rest = data.partition(b"\n")
    if plane == b"etcd":
        _read_publishers(rest)
        return None
    workers, knobs = Registered(), _dynamo()

    async def receive() -> None:
        source = DynamoSource(knobs, cast("SourcedWorkers", workers))
        if plane == b"zmq":
            source._on_frames(None, "tcp://h:1", rest.split(_END, 3))
        else:
            for record in rest.split(_END)[:4]:
                source._on_envelope(knobs.pools[0], "s", record)
        assert all(reason.isidentifier() for reason in source.refused)
        workers.report()

    _run(receive())
    return workers.check


def _read_publishers(data: bytes) -> None:
    known: set[Publisher] = set()
    values = data.split(_END)[:4]
    publishers = Publishers(known.update)
    entries = [StoreEntry(f"{PREFIX}{number}", value, 1, 1, 1) for number, value in enumerate(values)]
    publishers.read(StoreSnapshot(entries, 1))
    for publisher in known:
        msgspec.json.encode(publisher)


class Redis:
    """Llumnix's store with one engine, whose status changes."""

    def __init__(self, metadata: bytes, statuses: Sequence[bytes]) -> None:
        self._metadata = metadata
        self._statuses = iter(statuses)

    async def keys(self, prefix: str) -> list[str]:
        return [f"{prefix}i"]

    async def values(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._metadata if key.startswith(METADATA_PREFIX) else next(self._statuses) for key in keys]


@cache
def _llumnix() -> LlumnixKnobs:
    pools = (
        LlumnixPoolKnobs(model="m", name="p", role="prefill", instance_type="prefill", block_size_tokens=16),
        LlumnixPoolKnobs(model="m", name="n", role="aggregated", instance_type="neutral"),
    )
    return LlumnixKnobs(pools=pools)


def read_llumnix(data: bytes) -> Callable[[], None]:
    """Read the metadata of an engine, and its statuses in turn."""
    metadata, *statuses = data.split(_END)[:4]
    workers, redis = Registered(), cast("RedisReader", Redis(metadata, statuses))

    async def poll() -> None:
        source = LlumnixSource(_llumnix(), cast("SourcedWorkers", workers), redis, GrpcCalls(1, 1.0))
        for _ in statuses:
            await source._poll()
            workers.report()

    _run(poll())
    return workers.check


def _answer(*pages: tuple[str, dict[str, float]], at_s: float = 1_700_000_000.5) -> bytes:
    series = [
        {"metric": {"__name__": name, "pod": pod, "model_name": "tiny"}, "values": [[at_s, str(value)]]}
        for pod, values in pages
        for name, value in values.items()
    ]
    return msgspec.json.encode({"status": "success", "data": {"resultType": "matrix", "result": series}})


def _pages() -> list[bytes]:
    engine = {
        "process_start_time_seconds": 1.7e9,
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:request_success_total": 7,
        "vllm:prompt_tokens_total": 900,
    }
    later = {name: value + 1 for name, value in engine.items() if name != "process_start_time_seconds"}
    router = {"vllm_router:requests_total": 3.0}
    first = _answer(("w-1", engine), ("w-2", engine), ("r", router))
    answers = [
        first + _END + _answer(("w-1", later), ("r", {"vllm_router:requests_total": 9.0}), at_s=1_700_000_015.5),
        b'{"status":"error","error":"too many"}' + _END + first,
        b'{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["a store did not answer"]}',
    ]
    return [kind + answer for kind in (b"pool\n", b"router\n") for answer in answers]


def _records() -> list[bytes]:
    scope = {"namespace": "dynamo", "component": "backend"}
    channel = {
        "topic": "forward-pass-metrics",
        "transport": {"kind": "Zmq", "config": {"endpoint": "tcp://h:2"}},
        "scope": {**scope, "endpoint": {"namespace": "dynamo", "component": "backend"}},
    }
    subject = "namespace.dynamo.component.backend.forward-pass-metrics"
    return [
        b"nats\n" + envelope(forward_pass(counter_id=1)) + _END + envelope(forward_pass(counter_id=2, dp_rank=1)),
        b"zmq\n" + _END.join([subject.encode(), b"8", b"8", framed(forward_pass())[3]]),
        b"etcd\n" + msgspec.json.encode(channel) + _END + msgspec.json.encode({**channel, "scope": {}, **scope}),
    ]


def _engines() -> list[bytes]:
    known = {"instance_id": "i", "ip": "127.0.0.1", "llumlet_port": 1, "utc_create": 1.5, "tensor_parallel_size": 2}
    status = {"schedulable": True, "num_running_requests": 2, "num_total_gpu_tokens": 900, "num_used_gpu_tokens": 90}
    statuses = [
        InstanceStatus(**status, instance_id="i", timestamp_ms=number, num_available_migrate_in_slots=number)
        for number in (5, 6)
    ]
    return [
        _END.join(one.SerializeToString() for one in (InstanceMetadata(**known, instance_type=kind), *statuses))
        for kind in ("neutral", "prefill")
    ]


SOURCE_TARGETS: Final = (
    Target("prometheus", read_prometheus, _pages(), (), _PROMETHEUS_MS),
    Target("dynamo", read_dynamo, _records()),
    Target("llumnix", read_llumnix, _engines()),
)
