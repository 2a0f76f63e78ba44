"""``python -m loadline`` and the console script."""

import sys

from loadline.adapters import logs, signals
from loadline.cli import main as cli


def main() -> int:
    """Run one command; gives its exit code."""
    if sys.argv[1:2] == ["run"]:
        signals.hold()  # first of all: it takes a second until the agent has a loop
    # Answers go to stdout, warnings do not; `run` sets up its own log.
    logs.configure("auto", "warning", sys.stderr)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
