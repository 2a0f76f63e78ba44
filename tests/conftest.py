"""Real servers for all tests: one shared pair, in which every test takes its own name, and private ones to break."""

import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
from hypothesis import HealthCheck, settings

from loadline.adapters.logs import BoundedLogger
from loadline.rig.server_processes import EtcdServer, NatsServer
from tests.file_order import rank
from tests.file_scheduling import NICENESS, FileScheduling, has_low_priority, workers

# Examples have no deadline, since a busy machine is slow. They are the same in each run, which thus fails by what has
# changed only; --hypothesis-profile=random searches for others.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", settings.get_profile("random"), derandomize=True)
settings.load_profile("tests")

S = TypeVar("S", NatsServer, EtcdServer)

_names = itertools.count()

_modules: set[str] = set()
"""Names of the modules whose loggers are known."""
_logs: list[BoundedLogger] = []

# A shell starts background processes with SIGINT ignored, which children inherit; those of tests must receive it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files, see ``file_order``."""
    items.sort(key=lambda item: rank(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run as many workers as ``file_scheduling`` says."""
    return workers()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    """Distribute files as ``file_scheduling`` does. Without ``log``, xdist prints a line for each test."""
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    """Lower the priority of a worker that computes beside the others."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None and has_low_priority(worker["workerid"]):
        os.nice(NICENESS)


def pytest_collection() -> None:
    """Stop the collector of cyclic garbage: modules and tests, a million objects, are no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let the collector run over what the tests themselves leave: with the rest, it took a tenth of their time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def reset_log() -> Iterator[None]:
    """Reset structlog, since a command that ran in a test logs to the captured output of that test, and line limits.

    A line is suppressed after 30 of its kind in a minute, and tests of one file log that many.
    """
    yield
    structlog.reset_defaults()
    new = set(sys.modules) - _modules  # to look at all 700 of ours takes 1 ms, a fifth of the median test
    _modules.update(new)
    logs = (vars(sys.modules[name]).get("_log") for name in new if name.startswith("loadline."))
    _logs.extend(log for log in logs if isinstance(log, BoundedLogger))
    for log in _logs:
        log._limit._windows.clear()


@pytest.fixture
def own_name() -> str:
    """Return a name that no other test of this run uses, for subject roots and key prefixes on shared servers."""
    return f"t{os.getpid()}-{next(_names)}"


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server.url


@pytest.fixture(scope="session")
def etcd_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server.url


@pytest.fixture
def private_nats(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    """Return a function that starts a server for this test; its argument is text of the configuration file."""
    yield from _running(lambda number, config="": NatsServer(tmp_path / f"nats-{number}", config))


@pytest.fixture
def private_etcd(tmp_path: Path) -> Iterator[Callable[[], EtcdServer]]:
    """Return a function that starts a server for this test."""
    yield from _running(lambda number: EtcdServer(tmp_path / f"etcd-{number}"))


def _running(factory: Callable[..., S]) -> Iterator[Callable[..., S]]:
    """Yield a function that makes servers, and stop them at the end of the test."""
    servers: list[S] = []

    def make(*more: str) -> S:
        server = factory(len(servers), *more)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()
