"""State of the connection to what a source reads: one log line when it is lost, one when it is back."""

from collections.abc import Iterator

from loadline.adapters.backoff import backoff
from loadline.adapters.logs import bounded

# A hiccup costs a second; an upstream that is away for an hour is asked 240 times, and read within 15 s of its return.
RETRY_FIRST_S = 0.5
RETRY_MAX_S = 15.0

_log = bounded("source")


class Upstream:
    """One server that a source reads.

    Args:
        name: Its address, for the log.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reachable: bool | None = None
        """None before the first attempt."""
        self._waits: Iterator[float] = backoff(RETRY_FIRST_S, RETRY_MAX_S)

    def succeeded(self) -> None:
        """Record that the upstream answered."""
        if not self.reachable:
            _log.info("upstream_reachable", upstream=self.name)
            self._waits = backoff(RETRY_FIRST_S, RETRY_MAX_S)
        self.reachable = True

    def failed(self, reason: str, detail: str) -> float:
        """Record that the upstream did not answer usefully; return the time to wait, in s."""
        if self.reachable is not False:
            effect = "Nothing is reported for its workers and models until it answers."
            _log.warning("upstream_lost", upstream=self.name, reason=reason, detail=detail[:200], effect=effect)
        self.reachable = False
        return next(self._waits)
