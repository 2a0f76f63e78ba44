"""The example package of the how-to on planners, installed as a user installs it."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadline.config import plugins
from loadline.core.planning.planners import PLANNERS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/how-to/write-a-planner.md"
EXAMPLE = "in_flight"


def document_block(language: str, name: str) -> str:
    """Return the block of the document that names this file in its first line."""
    text = DOCUMENT.read_text("utf-8")
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if name in block.splitlines()[0])


def install_example(folder: Path) -> Path:
    """Build the package of the document and install it, without a network; return the folder to import it from."""
    source, target = folder / "source", folder / "installed"
    source.mkdir()
    (source / "pyproject.toml").write_text(document_block("toml", "pyproject.toml"), "utf-8")
    (source / "loadline_in_flight.py").write_text(document_block("python", "loadline_in_flight.py"), "utf-8")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    subprocess.run(command, check=True, timeout=120)
    return target


def write_plugin(folder: Path, module: str, code: str, **points: str) -> Path:
    """Write a module and the metadata of its package, with entry points for planners; return its folder."""
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(code, "utf-8")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", "utf-8")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{lines}", "utf-8")
    return folder


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Make the packages of a folder importable; unregister their planners at the end."""
    before = dict(PLANNERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        importlib.invalidate_caches()
        plugins.forget()
        try:
            yield
        finally:
            for name in PLANNERS.keys() - before.keys():
                sys.modules.pop(PLANNERS.pop(name).__module__, None)
    plugins.forget()
