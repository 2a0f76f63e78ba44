"""Simulated engine that runs in real time and streams the tokens of its requests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from loadline.demo.openai.metrics import VllmMetrics
from loadline.demo.openai.text import block_ids, output_of
from loadline.sim.engine import EngineEvent, Request, SimulatedEngine
from loadline.sim.serving.prefix import PrefixCache

FinishReason = Literal["stop", "length"]


class StreamCut(Exception):
    """The engine ended before the request."""


class Generation:
    """A request and the stream of its output.

    Args:
        request: Its numbers.
        prompt: Tokens of the prompt.
        output: Whole output, of which the engine determines the times.
        reason: Reason for which the output ends.
        submitted_ms: Virtual time of submission.
    """

    def __init__(
        self, request: Request, prompt: Sequence[int], output: list[int], reason: FinishReason, submitted_ms: float
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.output = output
        self.reason = reason
        self.submitted_ms = submitted_ms
        self.admitted_ms: float | None = None
        self.first_ms: float | None = None
        self.last_ms = submitted_ms
        self.emitted = 0
        self.preemptions = 0
        self._taken = 0
        self._cut = False
        self._changed = asyncio.Event()

    async def chunks(self) -> AsyncIterator[list[int]]:
        """Yield new tokens until the output ends.

        Raises:
            StreamCut: The engine ended before.
        """
        while self._taken < len(self.output):
            await self._changed.wait()
            self._changed.clear()
            if self._cut:
                raise StreamCut
            tokens = self.output[self._taken : self.emitted]
            self._taken = self.emitted
            if tokens:
                yield tokens

    def emit(self, count: int) -> None:
        """Make tokens available."""
        self.emitted += count
        self._changed.set()

    def cut(self) -> None:
        """End the stream without the rest."""
        self._cut = True
        self._changed.set()


class PacedEngine:
    """Engine whose virtual time is that of the event loop times ``speed``.

    It stops at the end of every iteration, so that each token has its time.

    Args:
        engine: The engine.
        metrics: Its metrics, in seconds of real time.
        speed: Virtual seconds per real second.
        tokens_mean: Mean output of requests that may end by themselves; None: they never do.
    """

    def __init__(
        self, engine: SimulatedEngine, metrics: VllmMetrics, speed: float = 1.0, tokens_mean: int | None = None
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._speed = speed
        self._tokens_mean = tokens_mean
        self._prefixes = PrefixCache(engine.knobs.kv_blocks_total, engine.knobs.block_size_tokens)
        self._generations: dict[str, Generation] = {}
        self._submitted = 0
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def context_max(self) -> int:
        """Largest number of tokens of one request."""
        return self._engine.knobs.kv_blocks_total * self._engine.knobs.block_size_tokens

    def submit(self, prompt: Sequence[int], tokens_max: int, *, ignore_eos: bool) -> Generation:
        """Submit a request of at most ``context_max`` tokens."""
        self._advance()
        output, by_itself = output_of(prompt, tokens_max, None if ignore_eos else self._tokens_mean)
        self._submitted += 1
        name, now_ms = str(self._submitted), self._now_ms
        cached = min(self._prefixes.hit_tokens(self._blocks(prompt)), len(prompt) - 1)
        request = Request(name, len(prompt), len(output), cached_tokens=cached)
        generation = Generation(request, prompt, output, "stop" if by_itself else "length", now_ms)
        self._generations[name] = generation
        self._idle.clear()
        self._engine.submit(request, now_ms)
        self._deliver([], now_ms)  # it may have been admitted at once
        self._schedule()
        return generation

    def abort(self, generation: Generation) -> None:
        """Drop a request; nothing if it has ended."""
        if self._generations.pop(generation.request.request_id, None) is not None:
            self._metrics.count("request_success:abort")
            self._engine.abort(generation.request.request_id, self._now_ms)
            self._schedule()
            self._set_idle()

    def cut(self) -> None:
        """End all streams at once."""
        for generation in self._generations.values():
            generation.cut()

    async def idle(self) -> None:
        """Wait until no request is inside."""
        await self._idle.wait()

    def exposition(self) -> bytes:
        """Return the metrics as Prometheus text."""
        self._advance()
        return self._metrics.exposition(self._engine.load())

    @property
    def _now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1_000.0 * self._speed

    def _advance(self, due_ms: float = 0.0) -> None:
        """Run until now, one iteration at a time, and set the timer for the next one.

        Args:
            due_ms: End of the iteration whose timer fires.
        """
        # A timer fires up to the resolution of the loop's clock early, and its time is rounded in another unit.
        now_ms = max(self._now_ms, due_ms)
        while (end_ms := self._engine.next_iteration_ms()) is not None and end_ms <= now_ms:
            self._deliver(self._engine.advance(end_ms), end_ms)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        end_ms = self._engine.next_iteration_ms()
        loop = asyncio.get_running_loop()
        self._timer = None if end_ms is None else loop.call_at(end_ms / 1_000.0 / self._speed, self._advance, end_ms)

    def _deliver(self, events: list[EngineEvent], at_ms: float) -> None:
        """Hand out the tokens of an iteration that ended at ``at_ms``."""
        tokens = 0
        for request in self._engine.migratable_requests():
            generation = self._generations.get(request.request_id)
            if generation is None:
                continue
            if not request.waiting and generation.admitted_ms is None:
                generation.admitted_ms = at_ms
            if request.output_tokens > generation.emitted:
                tokens += self._emit(generation, request.output_tokens, at_ms)
        for event in events:
            generation = self._generations.get(event.request_id)
            if generation is None:
                continue
            if event.kind == "finished":
                tokens += self._emit(generation, len(generation.output), at_ms)
                self._finish(generation)
            elif event.kind == "preempted":
                generation.preemptions += 1
                self._metrics.count("num_preemptions")
        if tokens:
            self._metrics.count("generation_tokens", tokens)
            self._metrics.observe("iteration_tokens_total", tokens)

    def _emit(self, generation: Generation, tokens: int, at_ms: float) -> int:
        """Emit the output up to ``tokens``; return the number of new ones."""
        new = tokens - generation.emitted
        if generation.first_ms is None:
            generation.first_ms = at_ms
            self._metrics.observe("time_to_first_token_seconds", self._seconds(at_ms - generation.submitted_ms))
            self._record_prompt(generation.request)
            self._prefixes.insert(self._blocks(generation.prompt))
        else:
            self._metrics.observe("inter_token_latency_seconds", self._seconds(at_ms - generation.last_ms))
        generation.last_ms = at_ms
        generation.emit(new)
        return new

    def _record_prompt(self, request: Request) -> None:
        tokens, cached = request.isl_tokens, request.cached_tokens
        counts = {
            "prefix_cache_queries": tokens,
            "prefix_cache_hits": cached,
            "prompt_tokens": tokens,
            "prompt_tokens_cached": cached,
            "prompt_tokens_by_source:local_compute": tokens - cached,
            "prompt_tokens_by_source:local_cache_hit": cached,
            "prompt_tokens_cached_by_source:device": cached,
        }
        for name, amount in counts.items():
            self._metrics.count(name, amount)

    def _finish(self, generation: Generation) -> None:
        request = generation.request
        del self._generations[request.request_id]
        tokens, first_ms = request.osl_tokens, generation.first_ms or generation.last_ms
        admitted_ms = min(generation.admitted_ms or first_ms, first_ms)
        self._metrics.count(f"request_success:{generation.reason}")
        spans_ms = {
            "e2e_request_latency_seconds": generation.last_ms - generation.submitted_ms,
            "request_queue_time_seconds": admitted_ms - generation.submitted_ms,
            "request_inference_time_seconds": generation.last_ms - admitted_ms,
            "request_prefill_time_seconds": first_ms - admitted_ms,
            "request_decode_time_seconds": generation.last_ms - first_ms,
        }
        if tokens > 1:
            spans_ms["request_time_per_output_token_seconds"] = (generation.last_ms - first_ms) / (tokens - 1)
        numbers = {
            "request_prompt_tokens": request.isl_tokens,
            "request_prefill_kv_computed_tokens": request.isl_tokens - request.cached_tokens,
            "request_generation_tokens": tokens,
            "request_max_num_generation_tokens": tokens,
            "request_num_preemptions": generation.preemptions,
            "request_params_n": 1,
            "request_params_max_tokens": tokens,
        }
        for name, value in [*numbers.items(), *((name, self._seconds(span)) for name, span in spans_ms.items())]:
            self._metrics.observe(name, value)
        self._prefixes.insert(self._blocks([*generation.prompt, *generation.output]))
        self._set_idle()

    def _blocks(self, tokens: Sequence[int]) -> list[int]:
        return block_ids(tokens, self._engine.knobs.block_size_tokens)

    def _set_idle(self) -> None:
        if not self._generations:
            self._idle.set()

    def _seconds(self, virtual_ms: float) -> float:
        return virtual_ms / 1_000.0 / self._speed
