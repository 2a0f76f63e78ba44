"""Progress on stderr: a bar where somebody looks, else a line for each tenth of what takes longer than a moment."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

OnProgress = Callable[[float], None]

# So that what is over in some seconds says nothing into a log.
_LINE_INTERVAL_S = 2.0


@contextmanager
def progress_display(what: str, *, quiet: bool) -> Iterator[OnProgress]:
    """Something to be told how much is done, 0..1, again and again."""
    if quiet:
        yield _nothing
    elif sys.stderr.isatty() and find_spec("rich") is not None:
        with _bar(what) as on_progress:
            yield on_progress
    else:
        yield ProgressLines(what).tell


class ProgressLines:
    """A line for each tenth, and never two within two seconds."""

    def __init__(self, what: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._now_s = now_s
        self._said_s = now_s()
        self._tenths = 0

    def tell(self, done: float) -> None:
        """So much is done, 0..1."""
        tenths = int(done * 10.0 + 1e-9)
        if tenths > self._tenths and self._now_s() - self._said_s >= _LINE_INTERVAL_S:
            self._tenths, self._said_s = tenths, self._now_s()
            print(f"{self._what}: {tenths * 10} %", file=sys.stderr, flush=True)


@contextmanager
def _bar(what: str) -> Iterator[OnProgress]:
    from rich import progress  # noqa: PLC0415 - an extra
    from rich.console import Console  # noqa: PLC0415 - as above

    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TaskProgressColumn())
    times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def _nothing(_done: float) -> None:
    pass
