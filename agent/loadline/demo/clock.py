"""Virtual time of the demo."""

import time


class ReplayClock:
    """Monotonic time times ``speed``, equal in all processes of one machine."""

    def __init__(self, speed: float) -> None:
        self.speed = speed

    def now_ms(self, behind_s: float = 0.0) -> float:
        """Return the virtual time ``behind_s`` real seconds ago, in ms."""
        return (time.monotonic() - behind_s) * 1_000 * self.speed
