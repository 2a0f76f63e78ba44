"""Entry point of ``python -m loadline`` and of the console script."""

import gc
import sys
from importlib import import_module

from loadline.adapters import deferred_sighup, standard_streams
from loadline.adapters.hidden_module import import_at_first_use


def main() -> int:
    """Run one command and return its exit code."""
    standard_streams.open_closed()
    if sys.argv[1:2] == ["run"]:
        deferred_sighup.defer()  # before the slow imports
        gc.disable()  # until `garbage.configure`: collections during imports take 35 ms and free less than 1 MB
    import_at_first_use("numpy")  # 12 MB and 60 ms, which most commands and some planners do not need
    logs, cli = (import_module(f"loadline.{name}") for name in ("adapters.logs", "cli.main"))
    # Results go to stdout, so warnings go to stderr; `run` configures its own log.
    logs.configure("auto", "warning", sys.stderr)
    code: int = cli.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
