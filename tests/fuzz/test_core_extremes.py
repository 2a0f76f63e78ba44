"""No message that the codec accepts makes the agent raise, announce an infinite number, or compute without end.

More seeds: ``python -W error -m tests.fuzz.extreme_fleets FIRST:LAST --cpu-s SECONDS``.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.fuzz.extreme_settings import worlds

ROOT = Path(__file__).parents[2]
SEED = 0


def test_the_agent_survives_extremes_within_its_memory() -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.fuzz.extreme_fleets", f"{SEED}:{SEED + 1}"]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # the stacks of more count as memory
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | one_thread)
    assert done.returncode == 0, done.stderr[-4_000:]
    counts = msgspec.json.decode(done.stdout, type=dict[str, int])
    # The fuzz is worth its time only while most messages are accepted and lead to every kind of effect.
    assert counts["worlds"] == len(list(worlds(SEED)))
    assert counts["rejected"] < 0.2 * counts["frames"], counts
    for effect in ("CommitDecision", "SendMigrate", "SendDrain", "FitForecast", "SolveAllocation", "SaveLearned"):
        assert counts.get(effect, 0) > 10, counts
