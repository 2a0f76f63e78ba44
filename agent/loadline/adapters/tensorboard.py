"""TensorBoard event files with the scalars of Dynamo's first planner, one run for each model.

tensorboardX's own writer has a thread that an error of the disk ends for good, so only its messages and checksums are
used. Files are written in a thread: a slow disk delays no turn.
"""

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from time import time
from typing import Final
from urllib.parse import quote

from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from loadline.adapters.daemon_thread import call_in_daemon
from loadline.adapters.logs import bounded
from loadline.core.vocabulary.status import ModelStatus, PoolStatus, mean_kv_usage
from loadline.errors import ConfigError

_log = bounded("tensorboard")
_KEY: Final = "tensorboard.log_dir"
_VERSION: Final = "brain.Event:2"
"""First event of a file."""
_MASK_DELTA: Final = 0xA282EAD8


class TensorboardFiles:
    """Event files in a folder, with a folder for each model.

    Args:
        folder: The folder, which is created if it does not exist.
        gpus: GPUs per worker, by model and pool.

    Raises:
        ConfigError: The folder cannot be written.
    """

    def __init__(self, folder: Path, gpus: Mapping[tuple[str, str], int]) -> None:
        self._folder = folder
        self._gpus = gpus
        # TensorBoard orders the files of a run by this time.
        self._name = f"events.out.tfevents.{int(time())}.{os.uname().nodename}.{os.getpid()}"
        self._steps: dict[str, int] = {}
        self._failing = False
        self._lost = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".loadline"
            probe.touch()
            probe.unlink()
        except OSError as error:
            problem = f"{folder} cannot be written ({error.strerror})"
            raise ConfigError(_KEY, problem, "Choose another folder, or leave it empty.") from error

    @property
    def lost(self) -> int:
        """Number of scalars that could not be written."""
        return self._lost

    async def write(self, models: Iterable[ModelStatus]) -> None:
        """Write one sample of each model; scalars that cannot be written count as lost."""
        samples = [(model.model, dict(scalars(model, self._gpus))) for model in models]
        await call_in_daemon(lambda: self._write(samples))

    def _write(self, samples: Iterable[tuple[str, Mapping[str, float]]]) -> None:
        for model, values in samples:
            try:
                self._append(model, values)
            except OSError as error:
                self._lost += len(values)
                if not self._failing:
                    _log.warning("tensorboard_not_written", folder=str(self._folder), detail=str(error))
                self._failing = True
            else:
                self._failing = False

    def _append(self, model: str, values: Mapping[str, float]) -> None:
        step = self._steps[model] = self._steps.get(model, -1) + 1
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        record = _framed(Event(wall_time=time(), step=step, summary=summary))
        run = self._folder / _run_name(model)
        run.mkdir(parents=True, exist_ok=True)
        with (run / self._name).open("ab", buffering=0) as file:
            size = file.tell()
            if not size:
                record = _framed(Event(wall_time=time(), file_version=_VERSION)) + record
            if file.write(record) < len(record):
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise OSError("the disk is full")


def _framed(event: Event) -> bytes:
    """Return a record of an event file: length and content, each with its checksum."""
    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def scalars(model: ModelStatus, gpus: Mapping[tuple[str, str], int]) -> Iterator[tuple[str, float]]:
    """Return the scalars of a model by tag; workers of aggregated pools count as decode workers."""
    prefill = [pool for pool in model.pools if pool.role == "prefill"]
    decode = [pool for pool in model.pools if pool.role in {"decode", "aggregated"}]
    kv_usage = mean_kv_usage(decode)
    yield "prefill_queue_size", float(sum(pool.waiting_requests for pool in prefill))
    if kv_usage is not None:
        yield "average_kv_load", kv_usage
    yield "total_queued_requests", float(sum(pool.waiting_requests for pool in decode))
    yield "num_prefill_workers", float(sum(pool.ready for pool in prefill))
    yield "num_decode_workers", float(sum(pool.ready for pool in decode))
    yield "num_gpu", float(sum(_present(pool) * gpus.get((model.model, pool.pool), 0) for pool in model.pools))


def _present(pool: PoolStatus) -> int:
    return pool.ready + pool.starting + pool.draining


def _run_name(model: str) -> str:
    """Return a name of a folder: no separator, and neither ``.`` nor ``..``."""
    name = quote(model, safe="")
    return name.replace(".", "%2E", 1) if name.startswith(".") else name
