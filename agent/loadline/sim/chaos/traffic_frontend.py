"""Frontend of the chaos world that reports the traffic of a model, whose requests are simulated in aggregate.

Requests arrive at a given rate. They wait while no worker serves, and take one interval otherwise.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from loadline.client.traffic_interval import TrafficInterval
from loadline.errors import BusUnavailable
from loadline.sim.chaos.night_settings import ISL_TOKENS, OSL_TOKENS
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.wire.codec import encode
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects

_SENT_MAX: Final = 8
_TTFT_MS: Final = 250.0
_ITL_MS: Final = 20.0


class TrafficFrontend:
    """One frontend of one model.

    Args:
        timeline: Virtual time.
        bus: Its connection to the bus.
        model: The model.
        name: Its name.
        interval_ms: Time between two reports.
        requests_per_s: Returns the rate of its arrivals.
        serves: Returns True if a worker accepts requests.
    """

    def __init__(
        self,
        timeline: Timeline,
        bus: BusConnection,
        model: str,
        name: str,
        *,
        interval_ms: float,
        requests_per_s: Callable[[], float],
        serves: Callable[[], bool],
    ) -> None:
        self.bus = bus
        self.silent = False
        """True if it publishes no report."""
        self.late_ms_max = 0.0
        """Largest delay of a report, so that later ones overtake it."""
        self.repeats = False
        """True if it publishes its newest reports again with each one."""
        self._timeline = timeline
        self._model, self._name = model, name
        self._subject = Subjects("loadline").traffic(model, name)
        self._interval_ms = interval_ms
        self._requests_per_s = requests_per_s
        self._serves = serves
        self._rng = timeline.rng(f"frontend {name}")
        self._sent: deque[bytes] = deque(maxlen=_SENT_MAX)
        self.restart()
        self._schedule_report()

    def restart(self, older_ms: int = 0) -> None:
        """Lose all requests and start as a new incarnation; ``older_ms``: its clock was set back by this time."""
        self._incarnation = START_MS + int(self._timeline.now_ms) - older_ms
        self._sequence = 0
        self._waiting_ms: list[float] = []
        """Arrival times of the requests that wait."""
        self._running = 0

    def _schedule_report(self) -> None:
        """Schedule the next report at a multiple of the interval, when workers report too."""
        interval_ms = self._interval_ms
        self._timeline.call_at((self._timeline.now_ms // interval_ms + 1.0) * interval_ms, self._report)

    def _report(self) -> None:
        self._schedule_report()
        self._sequence += 1
        interval = self._serve_interval()
        sample = interval.sample(
            self._sequence, int(self._interval_ms), queued=len(self._waiting_ms), in_flight=self._running
        )
        payload = encode(TrafficReport(self._model, self._name, self._incarnation, sample))
        if self.silent:
            return
        for old in self._sent if self.repeats else ():
            self._publish(old)
        self._sent.append(payload)
        wait_ms = self._rng.uniform(0.0, self.late_ms_max) if self.late_ms_max else 0.0
        self._timeline.call_later(wait_ms, partial(self._publish, payload))

    def _serve_interval(self) -> TrafficInterval:
        """Let requests arrive and end; return the counts of the interval."""
        interval, now_ms = TrafficInterval(), self._timeline.now_ms
        for _ in range(self._running):
            interval.finished(OSL_TOKENS, _TTFT_MS, _ITL_MS, ttft_met=True, itl_met=True)
        arrivals = self._requests_per_s() * self._interval_ms / 1_000.0 + self._rng.random()
        for _ in range(int(arrivals)):
            interval.arrived(ISL_TOKENS)
            self._waiting_ms.append(now_ms)
        self._running = 0
        if self._serves():
            for arrived_ms in self._waiting_ms:
                if arrived_ms == now_ms:
                    self._running += 1
                else:  # it has waited, and takes little time afterwards
                    interval.finished(OSL_TOKENS, now_ms - arrived_ms, _ITL_MS, ttft_met=False, itl_met=True)
            self._waiting_ms.clear()
        return interval

    def _publish(self, payload: bytes) -> None:
        try:
            self.bus.publish_now(self._subject, payload)
        except BusUnavailable:
            return  # as in the client: a report that cannot be published now is dropped
