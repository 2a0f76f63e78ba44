"""Summary of completed migrations in a few lines."""

from typing import Final

from loadline.wire.messages import MigrationReport

LINES_MAX: Final = 3
"""Maximum number of worker pairs per call, so that migrations do not fill the terminal."""
_KNOWN_MAX: Final = 1_024
"""Maximum number of remembered commands: each end is reported three times, 1 s apart."""

_Pair = tuple[str, str, str, str]
"""Source, destination, policy, and the reason of a failure."""


def requests(count: int, adjective: str = "") -> str:
    """Format a number of requests."""
    return f"{count} {adjective}request{'' if count == 1 else 's'}"


class MigrationLog:
    """Completed migrations since the last call of ``take_lines``."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self._requests: dict[_Pair, int] = {}
        self._more = 0

    def add(self, report: MigrationReport) -> None:
        """Add the final report of a migration; other phases and repeated reports are ignored."""
        running = report.phase not in {"done", "aborted"}
        # Requests that finished before they could migrate are no failure.
        finished = report.reason == "finished" and not report.moved
        if running or finished or report.command_id in self._known:
            return
        self._known[report.command_id] = None
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        failure = report.reason if report.phase == "aborted" else ""
        pair = (report.source.worker, report.destination.worker, report.trigger, failure)
        count = report.failed if failure else report.moved
        if pair in self._requests or len(self._requests) < LINES_MAX:
            self._requests[pair] = self._requests.get(pair, 0) + count
        elif not failure:
            self._more += count

    def take_lines(self) -> list[str]:
        """Format and remove the collected migrations: one line per pair of workers, and a total of the others."""
        lines = [
            f"{requests(count)} {'not migrated' if failure else 'migrated'} {source} -> {destination} ({policy})"
            + (f": {failure}" if failure else "")
            for (source, destination, policy, failure), count in self._requests.items()
        ]
        lines += [f"{requests(self._more, 'more ')} migrated"] if self._more else []
        self._requests, self._more = {}, 0
        return lines
