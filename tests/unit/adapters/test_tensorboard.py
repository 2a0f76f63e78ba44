"""TensorBoard event files: scalars, names of runs, and folders that cannot be written."""

import asyncio
import io
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from loadline.core.vocabulary.status import ModelStatus, PoolStatus, TrafficStatus
from loadline.errors import ConfigError

pytest.importorskip("tensorboardX")
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event

from loadline.adapters import tensorboard
from tests.waiting import until

GPUS = {("m", "p"): 2, ("m", "d"): 4}


def pool(name: str, role: Any, **figures: Any) -> PoolStatus:
    zero = dict.fromkeys(("desired", "ready", "starting", "pending", "draining", "fresh", "waiting_requests"), 0)
    values = {**zero, "running_requests": 0, "kv_usage_ratio": 0.0, "workers": (), **figures}
    return PoolStatus(pool=name, role=role, **values)


def model(name: str = "m", kv: float = 0.5) -> ModelStatus:
    pools = (
        pool("p", "prefill", ready=2, starting=1, waiting_requests=7),
        pool("d", "decode", ready=3, draining=1, fresh=3, kv_usage_ratio=kv, waiting_requests=5),
    )
    traffic = TrafficStatus(None, None, None, None, None, 0)
    return ModelStatus(
        name, "threshold", paused=False, no_operation=False, pools=pools, traffic=traffic, decision=None, hold=()
    )


class Full(io.BytesIO):
    """A file of which nothing fits on the disk."""

    def write(self, _data: object) -> int:
        raise OSError(28, "No space left on device")


def events(run: Path) -> list[tuple[int, dict[str, float]]]:
    """Read step and scalars of all events of a run."""
    found = []
    for file in sorted(run.iterdir()):
        data = file.read_bytes()
        while data:
            [size] = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            if event.HasField("summary"):
                found.append((event.step, {one.tag: one.simple_value for one in event.summary.value}))
    return found


def test_each_sample_has_the_scalars_of_the_original_planner(tmp_path: Path) -> None:
    files = tensorboard.TensorboardFiles(tmp_path / "new" / "logs", GPUS)
    asyncio.run(files.write([model()]))
    asyncio.run(files.write([model(kv=0.25)]))
    scalars = {
        "prefill_queue_size": 7.0,
        "average_kv_load": 0.5,
        "total_queued_requests": 5.0,
        "num_prefill_workers": 2.0,
        "num_decode_workers": 3.0,
        "num_gpu": 3 * 2 + 4 * 4.0,
    }
    assert events(tmp_path / "new/logs/m") == [(0, scalars), (1, scalars | {"average_kv_load": 0.25})]
    assert files.lost == 0


@pytest.mark.parametrize("name", ["../up", "..", ".", "meta/llama-3.1", "a\0b"])
def test_a_model_writes_only_below_the_folder(tmp_path: Path, name: str) -> None:
    files = tensorboard.TensorboardFiles(tmp_path / "logs", {})
    asyncio.run(files.write([model(name)]))
    [run] = (tmp_path / "logs").iterdir()
    assert len(events(run)) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "logs"]


def test_a_folder_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"tensorboard\.log_dir: .*/file/logs cannot be written \(Not a directory\)"):
        tensorboard.TensorboardFiles(tmp_path / "file" / "logs", {})


def test_a_full_disk_loses_samples_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tensorboard.TensorboardFiles(tmp_path, GPUS)
    warnings = []
    monkeypatch.setattr(tensorboard._log, "warning", lambda event, **fields: warnings.append((event, fields)))

    with monkeypatch.context() as disk:
        disk.setattr(Path, "open", lambda *_options, **_more: Full())
        for _ in range(3):
            asyncio.run(files.write([model()]))
    assert files.lost == 3 * 6
    assert [event for event, _ in warnings] == ["tensorboard_not_written"]
    asyncio.run(files.write([model()]))
    assert files.lost == 3 * 6
    assert [step for step, _ in events(tmp_path / "m")] == [3]


def test_records_are_those_of_the_library(tmp_path: Path) -> None:
    event = Event(wall_time=1.5, step=3)
    writer = EventsWriter(str(tmp_path / "events"))
    writer.write_event(event)
    writer.close()
    [file] = tmp_path.iterdir()
    assert file.read_bytes().endswith(tensorboard._framed(event))


def test_an_agent_ends_while_a_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tensorboard.TensorboardFiles(tmp_path, GPUS)
    began, released, done = threading.Event(), threading.Event(), threading.Event()

    def hang(_samples: object) -> None:
        began.set()
        released.wait(5.0)
        done.set()

    monkeypatch.setattr(files, "_write", hang)

    async def scenario() -> None:
        writing = asyncio.create_task(files.write([model()]))
        await until(began.is_set)
        writing.cancel()

    asyncio.run(scenario())
    assert not done.is_set(), "the end waited for the file"
    released.set()
