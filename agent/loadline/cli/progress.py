"""Progress of long commands: a bar on stderr with the rate and the time left; nothing where stderr is no terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich import progress
from rich.console import Console
from rich.text import Text

OnProgress = Callable[[float, float], None]
"""Takes what is done and what is to do, in the same unit."""

_MINUTE_S: Final = 60.0


@contextmanager
def progress_display(what: str, unit: str, *, quiet: bool = False) -> Iterator[OnProgress]:
    """Yield a function that shows progress.

    Args:
        what: Work that is done, such as ``replaying journal``.
        unit: Unit of the progress in the plural, such as ``records``.
        quiet: Show nothing.
    """
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        _RateColumn(unit),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    disabled = quiet or not sys.stderr.isatty()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True, disable=disabled) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _RateColumn(progress.ProgressColumn):
    """Mean rate since the start, by the second or by the minute."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: progress.Task) -> Text:
        """Format the rate of a task; empty before its first progress."""
        return Text(rate_text(task.completed, task.elapsed or 0.0, self._unit), style="progress.data.speed")


def rate_text(done: float, elapsed_s: float, unit: str) -> str:
    """Format a rate, such as ``12 runs/min``; empty if nothing is done yet."""
    if done <= 0.0 or elapsed_s <= 0.0:
        return ""
    rate = done / elapsed_s
    return f"{rate:,.0f} {unit}/s" if rate >= 1.0 else f"{rate * _MINUTE_S:,.1f} {unit}/min"
