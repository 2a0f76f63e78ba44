"""State of an engine, as its answers tell it. Pure.

An engine is *away* if it refuses connections, gives no answer for some time, or makes no progress with the requests
that it runs: routers must not send it requests. It is *gone* if the requests that it had are lost or stuck, too: its
port is closed, or for a minute it has not answered at all or made no progress. An engine that answers with an error, or
with something else than metrics, serves, but its load is unknown.
"""

from typing import Final

from msgspec.structs import replace

from loadline.engine_metrics.engine_reader import EngineReader
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.engine_metrics.tables import detect
from loadline.errors import NotAnExposition

# One refusal may be a full backlog; two, a second apart, are a closed port.
_REFUSALS_MAX: Final = 2
# A server may be busy with one long prompt. Agents know after 5 s that a worker is silent.
SILENCE_MAX_MS: Final = 10_000
# One step of an engine, such as a chunk of a long prompt, takes seconds at most. Each changes the use of the cache or
# the latencies. A server whose core hangs keeps answering with the same numbers.
STANDSTILL_MAX_MS: Final = 60_000
_EMPTY_READINGS: Final = 2


class EngineState:
    """Readings and failures of one engine.

    Args:
        engine: Its name in the table of engines.
        now_ms: Monotonic time, as in all calls.
    """

    def __init__(self, engine: str, now_ms: int) -> None:
        self.reading: EngineReading | None = None
        """The newest reading."""
        self.problem = ""
        """Reason why the last answer has no metrics; empty: it has."""
        self.away = True
        self.gone = False
        self.starts = 0
        """Number of times that the engine was found to have started, the first included."""
        self._engine = engine
        self._reader = EngineReader(engine)
        self._answered_ms = now_ms
        self._heard_ms = now_ms
        self._refusals = 0
        self._empty: list[tuple[int, object]] = []
        """Times of the last readings without a request, and the use of the cache then."""
        self._progress: object = None
        self._progressed_ms = now_ms

    @property
    def warnings(self) -> dict[str, int]:
        """Oddities of the engine's metrics, by kind."""
        return self._reader.warnings

    def answered(self, page: bytes, asked_ms: int, now_ms: int) -> EngineReading | None:
        """Take an answer; return its reading, or None if it has no metrics of this engine."""
        self._answered_ms = self._heard_ms = now_ms
        self._refusals, self.gone = 0, False
        try:
            reading = self._reader.read(page, now_ms)
        except NotAnExposition as error:
            other = detect(page)
            hint = f"; it is one of {other}: --engine {other}" if other not in (None, self._engine) else ""
            self.problem = f"{error}{hint}"
            self._empty.clear()
            return None
        progress = _progress(reading)
        if progress is None or progress != self._progress:
            self._progress, self._progressed_ms = progress, now_ms
        stands_still = now_ms - self._progressed_ms >= STANDSTILL_MAX_MS
        self.starts += (self.away and not stands_still) or reading.restarted
        self.problem = f"no progress for {STANDSTILL_MAX_MS // 1_000} s with running requests" if stands_still else ""
        self.reading, self.away = reading, stands_still
        self.gone = stands_still
        self._note_empty(reading, asked_ms)
        return reading

    def failed(self, problem: str, now_ms: int, *, refused: bool = False, heard: bool = False) -> None:
        """Take the failure to get an answer.

        Args:
            problem: The reason.
            now_ms: Monotonic time.
            refused: True if no server listens.
            heard: True if the server has answered, with an error.
        """
        self.problem = problem
        self._empty.clear()
        self._refusals = self._refusals + 1 if refused else 0
        if heard:
            self._heard_ms = now_ms
        is_closed = self._refusals >= _REFUSALS_MAX
        if is_closed or now_ms - self._answered_ms >= SILENCE_MAX_MS:
            self.away = True
        if is_closed or now_ms - self._heard_ms >= STANDSTILL_MAX_MS:
            self.gone = True

    def empty_since(self, time_ms: int) -> bool:
        """Return True if two readings in a row, both asked for after a time, have no request, or the engine is gone.

        One is not enough: routers may send another request until they know that the worker is leaving.
        """
        return self.gone or (len(self._empty) == _EMPTY_READINGS and self._empty[0][0] >= time_ms)

    def _note_empty(self, reading: EngineReading, asked_ms: int) -> None:
        """Note a reading without a request, unless the cache has changed since: SGLang counts none during a prefill."""
        usage = [load.kv_usage_ratio for load in reading.ranks]
        if reading.requests != 0 or (self._empty and self._empty[-1][1] != usage):
            self._empty.clear()
        if reading.requests == 0:
            self._empty.append((asked_ms, usage))
            del self._empty[:-_EMPTY_READINGS]


def _progress(reading: EngineReading) -> object:
    """Return figures of which each step of a busy engine changes some; None: it is idle or does not tell.

    None also while requests complete. Waiting requests do not count: they arrive at an engine that hangs, too.
    """
    if not any(load.running_requests for load in reading.ranks):
        return None
    if not all(load.kv_usage_ratio for load in reading.ranks if load.running_requests):
        return None  # a simulated engine may run requests without a cache
    if reading.traffic is not None and reading.traffic.completed:
        return None
    return [replace(load, waiting_requests=None) for load in reading.ranks]
