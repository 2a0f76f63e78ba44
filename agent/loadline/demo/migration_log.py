"""What workers of the demo say of moves that have ended, as a few lines."""

from typing import Final

from loadline.wire.messages import MigrationReport

LINES_MAX: Final = 3
"""At a time: moves must not push everything else off a terminal."""
_KNOWN_MAX: Final = 1_024
"""Commands whose end was heard: it is said three times, a second apart."""

_Pair = tuple[str, str, str, str]
"""Source, destination, policy, and why nothing moved."""


def requests(count: int, which: str = "") -> str:
    """So many requests, in words."""
    return f"{count} {which}request{'' if count == 1 else 's'}"


class MigrationLog:
    """Collects moves that have ended until somebody wants to tell them."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self._requests: dict[_Pair, int] = {}
        self._more = 0

    def take(self, report: MigrationReport) -> None:
        """Take a report; one of a move that goes on, or was told already, is no news."""
        # Requests that ended before they were moved are nothing to tell of.
        goes_on, gone = report.phase not in {"done", "aborted"}, report.reason == "finished" and not report.moved
        if goes_on or gone or report.command_id in self._known:
            return
        self._known[report.command_id] = None
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        why = report.reason if report.phase == "aborted" else ""
        pair = (report.source.worker, report.destination.worker, report.trigger, why)
        count = report.failed if why else report.moved
        if pair in self._requests or len(self._requests) < LINES_MAX:
            self._requests[pair] = self._requests.get(pair, 0) + count
        elif not why:
            self._more += count

    def lines(self) -> list[str]:
        """What has ended since this was last asked: a pair of workers a line, and how many moved elsewhere."""
        found = [
            f"{requests(count)} {'did not move' if why else 'moved'} {source} -> {destination} ({policy})"
            + (f": {why}" if why else "")
            for (source, destination, policy, why), count in self._requests.items()
        ]
        found += [f"{requests(self._more, 'more ')} moved"] if self._more else []
        self._requests, self._more = {}, 0
        return found
