"""Packages that are loaded at their first use."""

import subprocess
import sys
from pathlib import Path

import pytest

AGENT = """
import sys
from loadline.adapters.hidden_module import import_at_first_use
import_at_first_use("numpy")
import loadline.app
assert not [name for name in sys.modules if name.startswith("numpy.")]
"""
THREADS = """
import threading
from loadline.adapters.hidden_module import import_at_first_use
import_at_first_use("numpy")
import numpy as np
together, sums = threading.Barrier(4), []
def add():
    together.wait()
    sums.append(int(np.linalg.norm(np.asarray([3.0, 4.0]))))
threads = [threading.Thread(target=add) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sums == [5] * 4, sums
"""
SUBMODULE = """
import sys
from loadline.adapters.hidden_module import import_at_first_use
import_at_first_use("numpy")
from numpy.linalg import norm
import numpy as np
assert norm is np.linalg.norm and type(np) is type(sys)
"""
SETTINGS = """
import sys
from pathlib import Path
from loadline.adapters.hidden_module import import_at_first_use
import_at_first_use("numpy")
from loadline.config import load
from loadline.runtime.settings import settings
Path(sys.argv[1]).write_text(sys.argv[2])
settings(load(Path(sys.argv[1])))
print(type(sys.modules["numpy"]) is type(sys))
"""
WITHOUT = """
import sys
from loadline.adapters.hidden_module import import_at_first_use
import_at_first_use("numpy")
from msgspec.structs import replace
from loadline.core.planning.planners import BUILT_IN
from loadline.runtime.settings import _WITHOUT_NUMPY
from loadline.sim.step import Stepper
from tests.support.step_simulator import StepSimulator, settings
assert _WITHOUT_NUMPY < {kind.name for kind in BUILT_IN}
for planner in (*sorted(_WITHOUT_NUMPY), "queueing"):
    whole = settings()
    simulator = StepSimulator(Stepper(replace(whole, models=(replace(whole.models[0], planner=planner),))).step, 0)
    simulator.run(300)
    assert (type(sys.modules["numpy"]) is type(sys)) is (planner == "queueing"), planner
"""
BROKEN = """
import sys
sys.path.insert(0, sys.argv[1])
from loadline.adapters.hidden_module import import_at_first_use
import_at_first_use("broken")
import broken
for _ in range(2):
    try:
        broken.anything
    except ImportError as error:
        assert str(error) == "no library"
    else:
        raise AssertionError
"""
MISSING = """
from loadline.adapters.hidden_module import import_at_first_use
import_at_first_use("numpy")
import_at_first_use("no_such_package")
import numpy as np
try:
    np.no_such_attribute
except AttributeError as error:
    assert "no_such_attribute" in str(error)
else:
    raise AssertionError
try:
    import no_such_package
except ModuleNotFoundError:
    pass
else:
    raise AssertionError
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_an_agent_starts_without_numpy() -> None:
    run(AGENT)


@pytest.mark.parametrize(
    ("model", "loads"),
    [
        ('planner = "threshold"', False),
        ('planner = "saturation"', False),
        ('planner = "auto"', True),
        ('planner = "load"', True),
        ('planner = "threshold"\n[models.migration]\nenabled = true', True),
    ],
)
def test_no_turn_waits_until_numpy_is_loaded(model: str, *, loads: bool, tmp_path: Path) -> None:
    pools = '[[models.pools]]\nname = "decode"\nrole = "decode"\n'
    table, _, rest = model.partition("\n")
    config = f'[[models]]\nname = "m"\n{table}\n{pools}{rest}\n'
    assert run(SETTINGS, str(tmp_path / "loadline.toml"), config) == str(loads)


def test_threads_wait_until_the_package_is_loaded() -> None:
    run(THREADS)


def test_the_import_of_a_submodule_loads_the_package_first() -> None:
    run(SUBMODULE)


def test_what_is_missing_is_reported_as_ever() -> None:
    run(MISSING)


def test_planners_that_need_no_numpy_do_not_load_it() -> None:
    run(WITHOUT)


def test_a_package_that_cannot_be_loaded_says_so_at_each_use(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("raise ImportError('no library')")
    run(BROKEN, str(tmp_path))
