"""Fuzz: ``make fuzz ARGS="--target codec --cases 1000000"``. Without a target, all of them in turn.

Each target runs in a child, guided by its coverage. Prints one line of JSON for each target, with the processor time
per 16 KiB of its slowest input and the memory that its inputs take; fails if an input escapes, and names its file.
``python -m tests.fuzz.examine TARGET FOLDER`` examines its folder of ``build/fuzz`` again.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from tests.fuzz.corpus import keep, kept
from tests.fuzz.examine import Findings
from tests.fuzz.target import Target, silence_logs
from tests.fuzz.targets import TARGETS

_ROOT: Final = Path(__file__).parents[2]
_FOLDER: Final = _ROOT / "build" / "fuzz"


def fuzz(target: Target, options: argparse.Namespace) -> bool:
    """Fuzz one target, print what was found, and return True if nothing escapes."""
    folder = _FOLDER / target.name
    for name in ("corpus", "suspects"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*target.seeds, *kept(target)]):
        (folder / "corpus" / f"kept-{number}").write_bytes(data)
    began_s = time.monotonic()
    child = ["tests.fuzz.guided", target.name, str(folder), str(options.cases), str(options.seed)]
    log = folder / "log"
    with log.open("wb") as output:
        done = subprocess.run([sys.executable, "-m", *child], cwd=_ROOT, stdout=output, stderr=output, check=False)
    cases = folder / "cases"
    findings = examined(target, folder)
    found = {
        "target": target.name,
        "cases": int(cases.read_text("ascii")) if cases.exists() else 0,
        "took_s": round(time.monotonic() - began_s),
        **msgspec.to_builtins(findings),
    }
    cases.unlink(missing_ok=True)
    if done.returncode and not findings.escapes:
        found["failed"] = f"see {log}"
    if options.keep:
        found["kept"] = keep(target, [path.read_bytes() for path in (folder / "corpus").iterdir()])
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    sys.stdout.flush()
    return not findings.escapes and "failed" not in found


def examined(target: Target, folder: Path) -> Findings:
    """Return what was found, of code that is not instrumented."""
    command = [sys.executable, "-m", "tests.fuzz.examine", target.name, str(folder)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return Findings({str(folder): f"the process ended with {done.returncode}: {done.stderr[-2_000:]}"})
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Findings)


def main() -> int:
    """Fuzz the targets of the command line."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", action="append", choices=TARGETS, help="what to fuzz; may be repeated")
    parser.add_argument("--cases", type=int, default=100_000, help="inputs of each target")
    parser.add_argument("--seed", type=int, default=1, help="seed of the mutations")
    parser.add_argument("--keep", action="store_true", help="write the corpus of tests/fuzz/corpus anew")
    options = parser.parse_args()
    with silence_logs():
        passed = [fuzz(TARGETS[name], options) for name in options.target or TARGETS]  # an escape ends no other target
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
