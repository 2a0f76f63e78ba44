"""Distribution of the test files of a parallel run."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.file_scheduling import FileScheduling, has_low_priority, workers

FILES = ("tests/process/test_a.py", "tests/process/test_b.py", "tests/simulation/test_c.py", "tests/unit/test_d.py")
PROCESS, OTHER_PROCESS, SIMULATION, UNIT = FILES


class Node:
    """Worker of xdist that accepts any tests."""

    def __init__(self, worker: str) -> None:
        self.gateway = SimpleNamespace(id=worker)

    def send_runtest_some(self, indices: list[int]) -> None: ...


def taken(worker: str, config: pytest.Config) -> list[str]:
    """Return the files in the order in which a worker takes them if it takes all."""
    scheduling = FileScheduling(config)
    node: Any = Node(worker)
    names = [f"{file}::test" for file in FILES]
    scheduling.workqueue.update({file: {name: False} for file, name in zip(FILES, names, strict=True)})
    scheduling.registered_collections[node] = names
    while scheduling.workqueue:
        scheduling._assign_work_unit(node)
    return list(scheduling.assigned_work[node])


def test_workers_beyond_the_cores_compute_while_the_others_wait(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(pytestconfig.option, "tx", ["4*popen"])
    assert workers() == 4
    assert taken("gw1", pytestconfig) == [PROCESS, OTHER_PROCESS, UNIT, SIMULATION]
    assert taken("gw2", pytestconfig) == [SIMULATION, UNIT, OTHER_PROCESS, PROCESS]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    assert (workers(), has_low_priority("gw3"), has_low_priority("gw4")) == (8, False, True)
