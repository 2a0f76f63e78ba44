"""Fixtures that several process tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadline.rig.rig import Rig
from tests.support.demo_fleet import DemoFleet


@pytest.fixture
def fleet(tmp_path: Path, nats_url: str, etcd_url: str, own_name: str) -> Iterator[DemoFleet]:
    started = DemoFleet(tmp_path, nats_url, etcd_url, own_name)
    yield started
    started.stop()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as running:
        yield running
