"""Engine of the chaos world behind a page of metrics in the format of vLLM, which a sidecar reads."""

import math
from collections.abc import Callable
from typing import Final, Literal

from loadline.sim.chaos.stub_engine import WorkShare
from loadline.sim.world.timeline import START_MS, Timeline

EngineCondition = Literal["dead", "up", "hanging", "stalled"]
"""A hanging engine does not answer. A stalled one answers and makes no progress."""
_REQUESTS: Final = 10
"""Requests of a fully busy engine."""
_KV_STEPS: Final = 997
"""Steps of the KV usage, which changes from page to page while the engine makes progress."""
_PAGE: Final = """\
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} {kv_usage}
process_start_time_seconds {started_s}
"""


class ServedEngine:
    """Process of an engine. It loads first, and takes the share of its worker in the work of the pool.

    Args:
        timeline: Virtual time.
        model: Model that it serves.
        load_ms: Time from each start until it answers.
    """

    def __init__(self, timeline: Timeline, model: str, load_ms: float) -> None:
        self.state: EngineCondition = "dead"
        self.since_ms = timeline.now_ms
        """Time since which it is in its state."""
        self.starts = 0
        """Number of times that it has come up."""
        self.share: Callable[[], WorkShare] | None = None
        """Returns the share of the work of its present worker; None: it has none."""
        self.busy = False
        """True if its newest page has running requests."""
        self._timeline = timeline
        self._model = model
        self._load_ms = load_ms
        self._started_ms = 0.0
        self._pages = 0
        self._page = b""
        self._life = 0
        self.start()

    def start(self) -> None:
        """Start the process again; it loses its requests and does not answer until it has loaded."""
        self._set("dead")
        life = self._life
        self._timeline.call_later(self._load_ms, lambda: self._come_up() if life == self._life else None)

    def restart_at_once(self) -> None:
        """Restart so fast that no reader may find it away."""
        self._come_up()

    def end(self) -> None:
        """End the process."""
        self._set("dead")

    def hang(self) -> None:
        """Answer no more."""
        self._set("hanging")

    def stall(self) -> None:
        """Answer with the same page, without progress."""
        self._page = self._render()
        self._set("stalled")

    def recover(self) -> None:
        """Continue after a hang or a stall."""
        if self.state in {"hanging", "stalled"}:
            self._set("up")

    def page(self) -> bytes | None:
        """Return the page of metrics; None if there is no answer."""
        if self.state in {"dead", "hanging"}:
            return None
        if self.state == "up":
            self._page = self._render()
        return self._page

    def _render(self) -> bytes:
        share = self.share() if self.share is not None else WorkShare(0.0, 0)
        full = min(1.0, share.busy)
        self.busy = full > 0.0
        self._pages += 1
        kv_usage = full * (0.9 + 0.1 * (self._pages % _KV_STEPS) / _KV_STEPS)
        return _PAGE.format(
            model=self._model,
            running=math.ceil(_REQUESTS * full),
            waiting=share.waiting,
            kv_usage=f"{kv_usage:.6f}",
            started_s=(START_MS + self._started_ms) / 1_000.0,
        ).encode()

    def _come_up(self) -> None:
        self._set("up")
        self._started_ms = self._timeline.now_ms
        self.starts += 1

    def _set(self, state: EngineCondition) -> None:
        self._life += 1
        self.state, self.since_ms = state, self._timeline.now_ms
