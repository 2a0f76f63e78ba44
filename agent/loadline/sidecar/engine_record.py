"""Registry record of an engine, and the search for another worker of the same engine."""

from typing import Final

from loadline.adapters.logs import bounded
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import is_name
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.errors import AddressTaken, ConfigError
from loadline.ports import Store
from loadline.servers import is_loopback
from loadline.sidecar.options import SidecarOptions
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.keys import Keys
from loadline.wire.subjects import encode_token

_SHOWN_CHARS_MAX: Final = 100
_log = bounded("sidecar")


def record_of(options: SidecarOptions, reading: EngineReading, incarnation: int) -> WorkerRecord:
    """Describe an engine as a worker.

    Raises:
        ConfigError: Neither the options nor the engine name the model, or not as agents accept it.
    """
    model = options.model or reading.model
    if not model:
        raise ConfigError("--model", "is missing, and the metrics of the engine do not name it", "Add --model NAME.")
    if not is_name(model):
        problem = f"is missing, and {model[:_SHOWN_CHARS_MAX]!r} of the engine's metrics is no name of a model"
        remedy = "Add --model NAME, or have the engine serve it under a name of at most 100 characters."
        raise ConfigError("--model", problem, remedy)
    return WorkerRecord(
        model=model,
        pool=options.pool or options.role,
        worker=options.worker,
        role=options.role,
        incarnation=incarnation,
        accelerator=options.accelerator,
        gpus=options.gpus,
        node=options.node,
        unit=options.unit,
        data_parallel_size=max(load.rank for load in reading.ranks) + 1,
        kv_blocks_total=reading.kv_blocks_total,
        block_size_tokens=reading.block_size_tokens,
        max_batch_requests=options.max_batch_requests or reading.max_batch_requests,
        address=options.advertise or options.url,
    )


async def check_address(store: Store, namespace: str, record: WorkerRecord) -> None:
    """Check that no worker of the model with another name is the same engine: its load would count twice.

    Only the keys of the model are read, since a worker's login to etcd may read no others.

    Raises:
        AddressTaken: There is one.
        LoadlineError: The store cannot be read.
    """
    loopback = is_loopback(record.base_url)
    prefix = f"{Keys(namespace).workers}{encode_token(record.model)}/"
    for entry in (await store.read(prefix)).entries:
        other = decode_as(WorkerRecord, entry.value, entry.key)
        if isinstance(other, Rejected) or other.names == record.names or other.base_url != record.base_url:
            continue
        if not loopback or other.node == record.node:
            place = f"worker {other.worker} of pool {other.pool}"
            remedy = "Run one sidecar for each engine; the entry of one that ended expires after 10 s."
            raise AddressTaken(f"the engine at {record.base_url} is registered as {place}. {remedy}")
