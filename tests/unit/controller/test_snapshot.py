"""Snapshots: a capture is unaffected by later events, and restoring it gives the same state."""

import msgspec
import pytest

from loadline.core.controller import Controller
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.events import LeadershipWon, LoadReported, RegistryRead, WorkerDeregistered
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord, WorkerSample

SETTINGS = Settings("a", "all", (ModelKnobs("m", (PoolKnobs("p", "decode"), PoolKnobs("q", "prefill"))),))


def controller(workers: int) -> Controller:
    original = Controller(SETTINGS)
    records = [WorkerRecord("m", "p", f"w{n}", "decode", incarnation=1) for n in range(workers)]
    original.handle([RegistryRead([RegisteredWorker(record, 7) for record in records])], 1_000)
    report(original, workers, 1, 2_000)
    return original


def report(original: Controller, workers: int, sequence: int, now: int) -> None:
    sample = WorkerSample(sequence, now, kv_usage_ratio=sequence / 10, waiting_requests=sequence)
    original.handle([LoadReported("m", "p", f"w{n}", 1, [sample]) for n in range(workers)], now)


@pytest.mark.parametrize("workers", [0, 1, 128, 300])
def test_a_capture_excludes_later_events(workers: int) -> None:
    original = controller(workers)
    before, finish = original.snapshot(), original.capture()
    report(original, workers, 2, 3_000)
    original.handle([WorkerDeregistered("m", "p", "w0"), LeadershipWon("all", 5, 6, 3_100, 5)], 3_100)
    assert original.snapshot() != before
    assert msgspec.json.encode(finish()) == before


def test_a_snapshot_restores_the_state() -> None:
    original, restored = controller(300), Controller(SETTINGS)
    restored.restore(msgspec.json.encode(original.capture()()))
    assert msgspec.json.encode(restored.state) == msgspec.json.encode(original.state)
    assert restored.snapshot() == original.snapshot()
