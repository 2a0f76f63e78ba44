"""``python -m loadline`` and the console script."""

import sys
from importlib import import_module

from loadline.adapters import deferred_sighup


def main() -> int:
    """Run one command; gives its exit code."""
    if sys.argv[1:2] == ["run"]:
        deferred_sighup.defer()  # before all that takes time to import
    logs, cli = (import_module(f"loadline.{name}") for name in ("adapters.logs", "cli.main"))
    # Answers go to stdout, warnings do not; `run` sets up its own log.
    logs.configure("auto", "warning", sys.stderr)
    code: int = cli.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
