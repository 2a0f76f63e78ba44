"""Digests of the fault simulation: equal for equal seeds in any process, and different for different seeds."""

import os
import subprocess
import sys

import pytest

from loadline.sim.chaos.runner import run_plan

HOURS = 0.25
PROGRAM = f"from loadline.sim.chaos.runner import run_plan; print(run_plan(7, {HOURS}).digest)"


@pytest.fixture(scope="module")
def digest() -> str:
    return run_plan(7, HOURS).digest


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_a_digest_does_not_depend_on_the_process(hash_seed: str, digest: str) -> None:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == digest


def test_another_seed_has_another_digest(digest: str) -> None:
    assert run_plan(8, HOURS).digest != digest
