"""Real servers for all tests: one shared pair, in which every test takes its own name, and private ones to break."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import structlog
from hypothesis import HealthCheck, settings

from loadline.rig.servers import EtcdServer, NatsServer
from tests.file_order import rank

# A loaded machine is slow, and that is no failure: no example has a deadline.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

S = TypeVar("S", NatsServer, EtcdServer)

_names = itertools.count()

# A shell starts what runs in its background deaf to Ctrl-C, and processes inherit that: those of tests must hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files, see ``file_order``."""
    items.sort(key=lambda item: rank(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one file more than there are cores, because some mostly wait."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(autouse=True)
def log_as_at_first() -> Iterator[None]:
    """A command that ran in a test leaves its log on the captured output of that test, which is closed after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def own_name() -> str:
    """A word that no other test of this run uses: for subject roots and key prefixes on the shared servers."""
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
    """Makes running servers of this test's own; an argument is text of the configuration file."""
    yield from _running(lambda number, config="": NatsServer(tmp_path / f"nats-{number}", config))


@pytest.fixture
def private_etcd(tmp_path: Path) -> Iterator[Callable[[], EtcdServer]]:
    """Makes running servers of this test's own."""
    yield from _running(lambda number: EtcdServer(tmp_path / f"etcd-{number}"))


def _running(made: Callable[..., S]) -> Iterator[Callable[..., S]]:
    """Makes servers, by their number and whatever else is said, and stops them when the test is over."""
    servers: list[S] = []

    def make(*more: str) -> S:
        server = made(len(servers), *more)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()
