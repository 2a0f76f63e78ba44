from collections.abc import Iterator
from pathlib import Path

import pytest

from loadline.config.plugins import discover
from tests.support.plugins import importable, install_example


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package of the document is installed in."""
    return install_example(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def toy(toy_folder: Path) -> Iterator[None]:
    """The planner of that package, registered as long as the test runs."""
    with importable(toy_folder):
        assert discover() == {}
        yield
