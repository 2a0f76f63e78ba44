"""Entry point of ``python -m loadline`` and of the console script."""

import sys
from importlib import import_module

from loadline.adapters import deferred_sighup


def main() -> int:
    """Run one command and return its exit code."""
    if sys.argv[1:2] == ["run"]:
        deferred_sighup.defer()  # before the slow imports
    logs, cli = (import_module(f"loadline.{name}") for name in ("adapters.logs", "cli.main"))
    # Results go to stdout, so warnings go to stderr; `run` configures its own log.
    logs.configure("auto", "warning", sys.stderr)
    code: int = cli.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
