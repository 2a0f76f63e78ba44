"""Run loadline's planners beside the planner of NVIDIA Dynamo, in NVIDIA's replay simulator.

python -m tools.bench.peers setup                  install NVIDIA's wheels: a minute or two, 1.2 GB in ~/.cache
python -m tools.bench.peers setup --lab DIR        the same in another folder; then give the option to run too
python -m tools.bench.peers run                    all rows; what is done is kept, and the same command continues
python -m tools.bench.peers run --list             the rows
python -m tools.bench.peers run --rows step,sine --planner auto --planner saturation --json FILE
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

from loadline.cli.output import table
from loadline.cli.progress import progress_display
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import ModelKnobs
from loadline.errors import LoadlineError
from tools.bench.peers.lab import FOLDER, Lab
from tools.bench.peers.results import Found, Results, key_of_run
from tools.bench.peers.rows import ROWS
from tools.bench.peers.runs import DYNAMO, FIXED, ITL_MS, TTFT_MS, row_runs
from tools.bench.peers.tables import result_rows

_STOPPED: Final = 130
"""Exit code after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do a command; return the exit code."""
    options = _options(arguments)
    try:
        code: int = options.command(options)
    except LoadlineError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the results so far are kept, and the same command continues", file=sys.stderr)
        return _STOPPED
    return code


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--lab", type=Path, default=FOLDER, metavar="DIR", help="folder of NVIDIA's wheels (%(default)s)"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    setup = commands.add_parser("setup", parents=[shared], help="install NVIDIA's wheels")
    setup.set_defaults(command=_setup)
    run = commands.add_parser("run", parents=[shared], help="run policies on rows, and print a table")
    run.set_defaults(command=_run)
    add = run.add_argument
    add("--list", action="store_true", help="print the rows and do nothing")
    add("--rows", type=_rows, default=list(ROWS), metavar="NAMES", help="rows, with commas between (default: all)")
    add(
        "--planner",
        action="append",
        choices=sorted(PLANNERS),
        metavar="NAME",
        help="planner of loadline; repeatable (default: that of a model whose configuration names none)",
    )
    add("--json", type=Path, metavar="FILE", help="file that keeps the results (default: results.json in --lab)")
    return parser.parse_args(arguments)


def _rows(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return names


def _setup(options: argparse.Namespace) -> int:
    Lab(options.lab).set_up()
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.list:
        print("\n".join(f"{name:<{max(map(len, ROWS))}}  {row.text}" for name, row in ROWS.items()))
        return 0
    policies = [FIXED, *DYNAMO, *(options.planner or [_default_planner()])]
    found = _results(options.rows, policies, Lab(options.lab), Results(options.json or options.lab / "results.json"))
    print(table(result_rows(found, policies)))
    print(
        f"\nattainment of {TTFT_MS:g} ms TTFT and {ITL_MS:g} ms ITL, GPU-hours over those of the smallest fixed fleet"
    )
    return 0


def _default_planner() -> str:
    return ModelKnobs("m", ()).planner


def _results(rows: Sequence[str], policies: Sequence[str], lab: Lab, results: Results) -> Found:
    """Do the runs that have no result yet; return the results of all."""
    keys = {(row, policy): key_of_run(ROWS[row], policy) for row in rows for policy in policies}
    waiting = [place for place, key in keys.items() if results.get(*place, key) is None]
    if waiting:
        with lab.simulator() as simulator, progress_display("simulating", "runs") as on_progress:
            done = 0
            for name, places in groupby(waiting, key=itemgetter(0)):
                with row_runs(ROWS[name], simulator) as runs:
                    for row, policy in places:
                        results.add(row, policy, runs.run(policy, keys[row, policy]))
                        done += 1
                        on_progress(done, len(waiting))
    return {row: {policy: results.found[row][policy] for policy in policies} for row in rows}


if __name__ == "__main__":
    sys.exit(main())
