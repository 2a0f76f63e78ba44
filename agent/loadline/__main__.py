"""``python -m loadline`` and the console script."""

import sys

from loadline.adapters import logs
from loadline.cli import main as cli


def main() -> int:
    """Run one command; gives its exit code."""
    # Answers go to stdout, warnings do not; `run` sets up its own log.
    logs.configure("auto", "warning", sys.stderr)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
