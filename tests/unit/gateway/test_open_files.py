"""Limit of open files of the gateway."""

import resource
from collections.abc import Iterator

import pytest

from loadline.cli.gateway import allow_connections


@pytest.fixture
def low_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("low_limit")
def test_as_many_connections_are_allowed_as_the_system_permits() -> None:
    allow_connections()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
