"""Progress on stderr: a bar on a terminal, else a line per tenth, at most one in two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

OnProgress = Callable[[float], None]

# Minimum time between two lines; a shorter run prints none, which keeps logs clean.
_LINE_INTERVAL_S = 2.0


@contextmanager
def progress_display(what: str, *, quiet: bool) -> Iterator[OnProgress]:
    """Yield a function that takes the progress, 0..1, and displays it."""
    if quiet:
        yield _ignore
    elif sys.stderr.isatty() and find_spec("rich") is not None:
        with _bar(what) as on_progress:
            yield on_progress
    else:
        yield ProgressLines(what).update


class ProgressLines:
    """Progress as lines: one per tenth, at most one in two seconds."""

    def __init__(self, what: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._now_s = now_s
        self._printed_s = now_s()
        self._tenths = 0

    def update(self, done: float) -> None:
        """Print a line if the progress, 0..1, has reached the next tenth."""
        tenths = int(done * 10.0 + 1e-9)
        if tenths > self._tenths and self._now_s() - self._printed_s >= _LINE_INTERVAL_S:
            self._tenths, self._printed_s = tenths, self._now_s()
            print(f"{self._what}: {tenths * 10} %", file=sys.stderr, flush=True)


@contextmanager
def _bar(what: str) -> Iterator[OnProgress]:
    from rich import progress  # noqa: PLC0415 - an extra
    from rich.console import Console  # noqa: PLC0415 - an extra

    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TaskProgressColumn())
    times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def _ignore(_done: float) -> None:
    pass
