"""Examine inputs as they are: ``python -m tests.fuzz.examine TARGET FILE...`` prints each that escapes."""

import sys
from pathlib import Path

import msgspec

from tests.fuzz.corpus import kept
from tests.fuzz.limits import limit_resources
from tests.fuzz.target import Escape, check_growth, silence_logs
from tests.fuzz.targets import TARGETS

ALLOWANCE_MB = 512
CPU_S = 600


def main(name: str, *files: str) -> None:
    """Print the escapes among the files, and a growth of memory over the corpus, as JSON."""
    silence_logs().__enter__()
    target = TARGETS[name]
    for seed in target.seeds:
        target.examine(seed, patience=1_000.0)  # imports and caches
    limit_resources(ALLOWANCE_MB, CPU_S)
    found: dict[str, str] = {}
    for file in files:
        try:
            target.examine(Path(file).read_bytes())
        except Escape as escape:
            found[file] = str(escape)
    try:
        check_growth(target, [*target.seeds, *kept(target)])
    except Escape as escape:
        found["the corpus"] = str(escape)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
