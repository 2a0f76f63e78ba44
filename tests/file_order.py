"""Order of the test files of a parallel run.

A file runs in one process, so the longest begin first, of those that compute and of those that mostly wait.
"""

from pathlib import Path

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    "simulation/test_seeds.py",
    "process/test_agent.py",
    "simulation/test_mutations.py",
    "process/test_up.py",
    "simulation/test_crashes.py",
    "process/test_fleet_migrations.py",
    "simulation/test_migration_mutations.py",
    "simulation/test_night_mutations.py",
    "process/test_fleet.py",
    "simulation/test_migration_figures.py",
    "process/test_agent_migrations.py",
    "fuzz/test_core_extremes.py",
    "planners/test_conformance.py",
    "process/test_learning.py",
    "planners/test_ramps.py",
    "process/test_local_scaler.py",
    "property/test_allocation.py",
    "process/test_fitter.py",
)
_SLOW_FOLDERS = ("process", "simulation", "planners", "property")


def rank(path: Path) -> tuple[int, int]:
    """Return the sort key of a file: the longest, those of other slow folders, all others."""
    name = path.relative_to(TESTS).as_posix()
    if name in LONGEST_FIRST:
        return 0, LONGEST_FIRST.index(name)
    return (1 if name.split("/")[0] in _SLOW_FOLDERS else 2), 0
