"""Results of runs, kept in a JSON file: by row and policy, with the digest of all that the run depends on."""

from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from loadline.cli.output_files import write_files
from loadline.errors import LoadlineError
from tools.bench.peers.lab import REQUIREMENTS
from tools.bench.peers.loads import ROOT, Row, Window
from tools.bench.peers.runs import DYNAMO, FIXED, Result
from tools.scoreboard.results import code_digest

_EVERYWHERE: Final = ("loads.py", "perf_model.py", "runs.py", "simulator.py")
_LOADLINE: Final = ("adapter.py", "snapshots.py")
"""Files of this tool that the runs of loadline's planners depend on too."""


Found = dict[str, dict[str, Result]]
"""Results by row and policy."""


class Results:
    """Results of a file; what is not there yet or depends on older code is missing.

    Args:
        path: The file; need not exist.

    Raises:
        LoadlineError: The file is not one of results.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: Found = {}
        if path.exists():
            try:
                self.found = msgspec.json.decode(path.read_bytes(), type=Found)
            except msgspec.DecodeError as error:
                raise LoadlineError(f"{path} has no results: {error}. Name another file, or remove it") from error

    def get(self, row: str, policy: str, key: str) -> Result | None:
        """Return the result of a run with this digest."""
        result = self.found.get(row, {}).get(policy)
        return result if result is not None and result.key == key else None

    def add(self, row: str, policy: str, result: Result) -> None:
        """Add the result of a run, and write the file."""
        self.found.setdefault(row, {})[policy] = result
        write_files({self._path: msgspec.json.format(msgspec.json.encode(self.found)) + b"\n"})


def key_of_run(row: Row, policy: str) -> str:
    """Return the digest of all that a run depends on."""
    here = Path(__file__).parent
    is_ours = policy != FIXED and policy not in DYNAMO
    code = [(here / name).read_bytes() for name in (_EVERYWHERE + _LOADLINE if is_ours else _EVERYWHERE)]
    trace = (ROOT / row.load.path).read_bytes() if isinstance(row.load, Window) else b""
    parts = (
        code_digest() if is_ours else "",
        [sha256(content).hexdigest() for content in (REQUIREMENTS.read_bytes(), trace, *code)],
        row,
        policy,
    )
    return sha256(msgspec.json.encode(parts)).hexdigest()[:16]
