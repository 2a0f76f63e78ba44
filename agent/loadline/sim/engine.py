"""One inference engine in virtual time: a prefill queue, continuous batching, and a KV cache in blocks.

Deterministic, without a clock: time comes in as an argument. The engine works in steps. A step is one prefill pass, or
a run of decode iterations in which nothing changes: nobody joins, nobody finishes, no block is missing. A run is
advanced at once, not token by token, so the cost is that of the changes.

Scheduling is that of an engine without chunked prefill: waiting prompts go first, first come first served, in one pass
of at most ``max_batched_tokens``, and no decode iteration runs meanwhile. When blocks run out the newest request loses
its cache, goes back to the head of the queue and is computed again later.

All state of a request is ``Request`` and the number of its tokens. A request that comes with its cache (``prefilled``)
continues where it was, so a request can be taken out of one engine and put into another.
"""

from collections import deque
from typing import Literal, Protocol

from msgspec import Struct

from loadline.core.observed import WorkerSample
from loadline.core.scalars import Role

# The iteration time is that of a run's first iteration. Over 64 iterations a batch of 50 grows by 3,200 tokens,
# about 1.5% of the cache of the demo's profile, which moves the iteration time by less than 3%.
_RUN_ITERATIONS_MAX = 64
# A newcomer must leave this share of the cache free for the growth of the others, or it would be thrown out at once.
_WATERMARK_RATIO = 0.01


class Timing(Protocol):
    """How long the hardware takes."""

    def prefill_ms(self, tokens: float) -> float:
        """Time of one prefill pass, in ms."""
        ...

    def itl_ms(self, kv_tokens: float, context_tokens: float) -> float:
        """Time of one decode iteration, in ms, at this KV use and mean context."""
        ...


class EngineKnobs(Struct, frozen=True):
    """What an engine is: its role and its limits."""

    role: Role
    kv_blocks_total: int
    block_size_tokens: int = 16
    max_batch_requests: int = 128
    max_batched_tokens: int = 8_192


class Request(Struct, frozen=True, omit_defaults=True):
    """A request, and how far it is. ``prefilled``: its KV cache comes with it, so no prefill is needed."""

    request_id: str
    isl_tokens: int
    osl_tokens: int
    generated_tokens: int = 0
    prefilled: bool = False


class EngineEvent(Struct, frozen=True):
    """What happened to a request, at an exact virtual time in ms.

    ``first_token`` ends a request's stay in a prefill engine. ``refused``: it could never fit into this engine's cache.
    """

    kind: Literal["first_token", "finished", "preempted", "refused"]
    request_id: str
    at_ms: float


class _Sequence(Struct, eq=False):
    """A request inside the engine. While it runs its cache holds all tokens but the newest."""

    request: Request
    generated: int
    cached: bool
    submitted_ms: float
    aborted: bool = False

    @property
    def tokens(self) -> int:
        return self.request.isl_tokens + self.generated

    @property
    def kv_tokens(self) -> int:
        """Tokens in the cache from admission on: all but the newest, or what its prefill pass will write."""
        return self.tokens - 1 if self.cached else self.tokens

    @property
    def left(self) -> int:
        return self.request.osl_tokens - self.generated

    @property
    def is_first(self) -> bool:
        """Whether the newest token is the first one that this engine has made of a prompt."""
        return not self.request.prefilled and self.generated == self.request.generated_tokens + 1


class _Step(Struct):
    """Work under way: a prefill pass over ``prefilling``, or, where that is empty, a run of decode iterations."""

    start_ms: float
    iteration_ms: float
    iterations: int
    prefilling: list[_Sequence]

    @property
    def end_ms(self) -> float:
        return self.start_ms + self.iterations * self.iteration_ms

    def iterations_at(self, now_ms: float) -> int:
        """Whole iterations done at a time."""
        return min(max(int((now_ms - self.start_ms) // self.iteration_ms), 0), self.iterations)


class Engine:
    """One engine. Times are virtual ms; a time before the last one given counts as the last one."""

    def __init__(self, knobs: EngineKnobs, timing: Timing) -> None:
        self.knobs = knobs
        self._timing = timing
        self._watermark_blocks = int(knobs.kv_blocks_total * _WATERMARK_RATIO)
        self._now_ms = 0.0
        self._held: dict[str, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []  # in the order of admission: the newest is last
        self._step: _Step | None = None
        self._events: list[EngineEvent] = []
        self._ttft_ms: float | None = None
        self._itl_ms: float | None = None
        self._isl_tokens: float | None = None
        self._iteration_ms: float | None = None

    @property
    def held(self) -> list[str]:
        """Ids of all requests inside, in the order in which they came."""
        return list(self._held)

    def submit(self, request: Request, now_ms: float) -> None:
        """Take a request. It joins at the end of the iteration or pass under way.

        Raises:
            ValueError: A request with this id is inside already, or its numbers make no sense.
        """
        if request.request_id in self._held:
            raise ValueError(f"request {request.request_id!r} is held already")
        if request.isl_tokens < 1 or not 0 <= request.generated_tokens < request.osl_tokens:
            raise ValueError(f"request {request.request_id!r} needs a prompt and tokens to generate")
        if request.prefilled and (self.knobs.role == "prefill" or request.generated_tokens == 0):
            raise ValueError(
                f"request {request.request_id!r} has its cache already: it needs a token and a decode engine"
            )
        self._run_until(now_ms)
        alone = request.isl_tokens if self.knobs.role == "prefill" else request.isl_tokens + request.osl_tokens - 1
        if self._blocks(alone) > self.knobs.kv_blocks_total:
            self._events.append(EngineEvent("refused", request.request_id, self._now_ms))
            return
        sequence = _Sequence(request, request.generated_tokens, request.prefilled, self._now_ms)
        self._held[request.request_id] = sequence
        self._waiting.append(sequence)
        self._interrupt()

    def abort(self, request_id: str, now_ms: float) -> bool:
        """Drop a request, at the end of the iteration under way if it runs. False when it is not inside."""
        self._run_until(now_ms)
        sequence = self._held.get(request_id)
        if sequence is None:
            return False
        sequence.aborted = True
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            del self._held[request_id]
        self._interrupt()
        return True

    def advance(self, now_ms: float) -> list[EngineEvent]:
        """Run until a time; gives what happened since the last call, in order of time."""
        self._run_until(now_ms)
        events, self._events = self._events, []
        return events

    def next_event_ms(self) -> float | None:
        """When the step under way ends; None when there is nothing to do."""
        return None if self._step is None else self._step.end_ms

    def load(self) -> WorkerSample:
        """What a worker reports of this engine, as of the last time given; who publishes it numbers and stamps it."""
        step = self._step
        prefilling = step.prefilling if step else []
        done = 0 if step is None or prefilling else step.iterations_at(self._now_ms)
        return WorkerSample(
            sequence=0,
            timestamp_ms=0,
            kv_blocks_used=self._blocks_after(done) + sum(self._blocks(s.kv_tokens) for s in prefilling),
            kv_blocks_total=self.knobs.kv_blocks_total,
            waiting_requests=len(self._waiting),
            running_requests=len(self._running) + len(prefilling),
            queued_prefill_tokens=sum(s.tokens for s in self._waiting if not s.cached),
            active_prefill_tokens=sum(s.tokens for s in prefilling),
            decode_tokens=sum(s.kv_tokens for s in self._running) + done * len(self._running),
            decode_batch_requests=len(self._running),
            waiting_to_decode_tokens=sum(s.kv_tokens for s in self._waiting if s.cached),
            ttft_ms=self._ttft_ms,
            itl_ms=self._itl_ms,
            isl_tokens=self._isl_tokens,
            iteration_ms=self._iteration_ms,
        )

    def _run_until(self, now_ms: float) -> None:
        while self._step is not None and self._step.end_ms <= now_ms:
            step, self._step = self._step, None
            if step.prefilling:
                self._end_prefill(step)
            else:
                self._end_run(step)
            self._begin(step.end_ms)
        self._now_ms = max(self._now_ms, now_ms)

    def _interrupt(self) -> None:
        """Something changed: a run of decode iterations ends with the iteration under way; an idle engine begins."""
        if self._step is None:
            self._begin(self._now_ms)
        elif not self._step.prefilling:
            self._step.iterations = min(self._step.iterations, self._step.iterations_at(self._now_ms) + 1)

    def _begin(self, at_ms: float) -> None:
        prefilling = self._admit()
        if prefilling:
            self._iteration_ms = self._timing.prefill_ms(sum(s.tokens for s in prefilling))
            self._step = _Step(at_ms, self._iteration_ms, 1, prefilling)
        elif self._running:
            self._make_room(at_ms)
            kv_tokens = sum(s.kv_tokens for s in self._running)
            self._itl_ms = self._iteration_ms = self._timing.itl_ms(kv_tokens, kv_tokens / len(self._running))
            self._step = _Step(at_ms, self._itl_ms, self._iterations_without_change(), [])

    def _admit(self) -> list[_Sequence]:
        """Take from the queue what fits. Who brings a cache joins the batch; gives who needs a prefill pass first."""
        prefilling: list[_Sequence] = []
        budget_tokens = self.knobs.max_batched_tokens
        free = self.knobs.kv_blocks_total - self._blocks_after(0)
        while self._waiting and len(self._running) + len(prefilling) < self.knobs.max_batch_requests:
            head = self._waiting[0]
            free -= self._blocks(head.kv_tokens)
            if free < (self._watermark_blocks if self._running or prefilling else 0):
                break
            if head.cached:
                self._running.append(head)
            elif not prefilling or head.tokens <= budget_tokens:
                budget_tokens -= head.tokens
                prefilling.append(head)
            else:
                break
            self._waiting.popleft()
            self._isl_tokens = float(head.request.isl_tokens)
        return prefilling

    def _make_room(self, at_ms: float) -> None:
        """Send the newest back to the queue until the others can each write one more token."""
        while self._blocks_after(1) > self.knobs.kv_blocks_total:
            newest = self._running.pop()
            newest.cached = False
            self._waiting.appendleft(newest)
            self._events.append(EngineEvent("preempted", newest.request.request_id, at_ms))

    def _iterations_without_change(self) -> int:
        """How many iterations until somebody finishes or a block is missing. At least one: room was made."""
        most = min(_RUN_ITERATIONS_MAX, *(s.left for s in self._running))
        if self._blocks_after(most) <= self.knobs.kv_blocks_total:
            return most
        low, high = 1, most  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            if self._blocks_after(middle) <= self.knobs.kv_blocks_total:
                low = middle
            else:
                high = middle
        return low

    def _end_run(self, step: _Step) -> None:
        for sequence in self._running:
            sequence.generated += step.iterations
        self._running = [sequence for sequence in self._running if not self._leaves(sequence, step.end_ms)]

    def _end_prefill(self, step: _Step) -> None:
        for sequence in step.prefilling:
            # A pass also samples the next token, the first one or, after a preemption, one more.
            sequence.generated += 1
            sequence.cached = True
            if sequence.is_first and not sequence.aborted:
                self._ttft_ms = step.end_ms - sequence.submitted_ms
                self._events.append(EngineEvent("first_token", sequence.request.request_id, step.end_ms))
            if self.knobs.role == "prefill":
                del self._held[sequence.request.request_id]
            elif not self._leaves(sequence, step.end_ms):
                self._running.append(sequence)

    def _leaves(self, sequence: _Sequence, at_ms: float) -> bool:
        """Whether a request is done or aborted; then it is let go."""
        if not sequence.aborted:
            if sequence.left > 0:
                return False
            self._events.append(EngineEvent("finished", sequence.request.request_id, at_ms))
        del self._held[sequence.request.request_id]
        return True

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.knobs.block_size_tokens)

    def _blocks_after(self, iterations: int) -> int:
        """Blocks that the batch holds after so many more iterations."""
        size = self.knobs.block_size_tokens
        return sum(-(-(s.request.isl_tokens + s.generated - 1 + iterations) // size) for s in self._running)
