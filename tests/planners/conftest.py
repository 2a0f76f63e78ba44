from collections.abc import Iterator
from pathlib import Path

import pytest

from loadline.config.plugins import discover
from tests.support.plugins import importable, install_example


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the installed package of the documentation."""
    return install_example(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def toy(toy_folder: Path) -> Iterator[None]:
    """Planner of that package, registered during the test."""
    with importable(toy_folder):
        assert discover() == {}
        yield
