"""Kill, freeze and cut off the processes of a fleet under load, and check that nothing is lost.

python -m tools.process_chaos --seeds 0:3 --for 120

It starts nats-server, etcd, two agents, a scaler with real worker processes and a gateway, all on loopback. The seed
gives the faults and their times; what the processes do meanwhile depends on the machine. Odd seeds have three members
of nats-server and of etcd.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from loadline.cli.exit_codes import INTERRUPTED
from tools.process_chaos.plan import KINDS, OF_VERSIONS, draw
from tools.process_chaos.run import SETTLE_S, Outcome, run, run_until_signalled


def main() -> int:
    """Run the selected seeds; return 1 on a violation."""
    options = _arguments()
    failed = 0
    for seed in options.seeds:
        directory = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=options.directory))
        plan = replace(draw(seed, options.for_s, SETTLE_S, options.only), other_revision=options.other)
        try:
            outcome = run_until_signalled(run(plan, directory, _line))
        except KeyboardInterrupt:
            _line(f"interrupted; all processes have ended, and their files are in {directory}")
            return INTERRUPTED
        failed += bool(outcome.violations)
        _report(seed, outcome, directory)
    return 1 if failed else 0


def _report(seed: int, outcome: Outcome, directory: Path) -> None:
    takeovers = ", ".join(f"{took_s:.1f} s after {kind}" for kind, took_s in outcome.takeovers)
    print(f"seed {seed}: {outcome.summary}")
    print(f"  takeovers: {takeovers or 'none timed'}")
    for violation in outcome.violations:
        print(f"  VIOLATION: {violation}")
    print(f"  files: {directory}")


def _line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.process_chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=_seeds, default=range(1), metavar="FIRST:END", help="default: 0:1")
    parser.add_argument("--for", dest="for_s", type=float, default=120.0, metavar="S", help="seconds (default: 120)")
    parser.add_argument("--directory", type=Path, help="folder for the files of all seeds (default: a temporary one)")
    parser.add_argument("--only", type=_kinds, metavar="KIND,KIND", help="kinds of faults (default: all)")
    parser.add_argument(
        "--other", default="", metavar="REVISION", help="tag or commit to which agents change, and back"
    )
    options = parser.parse_args()
    if options.only is None:
        options.only = KINDS.keys() if options.other else KINDS.keys() - {OF_VERSIONS}
    elif OF_VERSIONS in options.only and not options.other:
        parser.error(f"{OF_VERSIONS} needs --other")
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    return options


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := set(kinds) - KINDS.keys():
        raise argparse.ArgumentTypeError(f"no kinds of faults: {sorted(unknown)}; there are {', '.join(KINDS)}")
    return kinds


if __name__ == "__main__":
    sys.exit(main())
