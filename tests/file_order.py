"""Order of the test files of a parallel run.

A file runs in one process, so the longest begin first, of those that compute and of those that mostly wait.
"""

from pathlib import Path

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    "process/test_election.py",
    "process/test_process_chaos.py",
    "process/test_up.py",
    "process/test_reload.py",
    "process/test_kubernetes_scaler.py",
    "process/test_migration_only.py",
    "process/test_agent.py",
    "process/test_fleet_migrations.py",
    "process/test_clients.py",
    "process/test_replica_metrics.py",
    "process/test_doctor.py",
    "process/test_fleet.py",
    "process/test_etcd_roles.py",
    "simulation/test_seeds.py",
    "simulation/test_crashes.py",
    "simulation/test_mutations.py",
    "planners/test_ramps.py",
    "fuzz/test_core_extremes.py",
    "planners/test_conformance.py",
    "simulation/test_migration_figures.py",
    "property/test_allocation.py",
)
_SLOW_FOLDERS = ("process", "simulation", "planners", "property")


def rank(path: Path) -> tuple[int, int]:
    """Return the sort key of a file: the longest, those of other slow folders, all others."""
    name = path.relative_to(TESTS).as_posix()
    if name in LONGEST_FIRST:
        return 0, LONGEST_FIRST.index(name)
    return (1 if name.split("/")[0] in _SLOW_FOLDERS else 2), 0
