"""The engine: admission, scheduling of steps and their results.

It is deterministic and has no clock: callers pass the time. It works in steps. A step is one iteration with prompts,
or a run of decode iterations without a change: no member joins or finishes, and no block is missing. A run is
advanced at once, so the cost depends on the number of changes and not on the number of tokens.

Waiting prompts take precedence, first come first served, up to ``max_batched_tokens`` in a pass. Without chunked
prefill, prompts stay whole and no decode iteration runs at the same time. With it, an iteration holds one token of each
member of the batch and chunks of prompts in the rest of ``max_batched_tokens``. When blocks run out, the newest
request is preempted: it loses its cache, returns to the head of the queue and is computed again.

An iteration that computes the prompt tokens from ``a`` to ``b`` of some requests takes, in ms,

    max(itl, prefill(0)) + sum(prefill(b) - prefill(a))

where ``itl`` is that of the decode batch in the same iteration, if any. The fixed cost of a pass, such as reading the
weights, is paid
once. The chunks of a prompt cost as much as the whole, and a pass over one whole prompt takes the profile's time.
"""

from bisect import bisect_right

from msgspec.structs import replace

from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerSample
from loadline.sim.engine.batch import RunningBatch
from loadline.sim.engine.knobs import EngineKnobs
from loadline.sim.engine.request import EngineEvent, EventKind, Request, Sequence
from loadline.sim.engine.step import EngineStep, PrefillChunk
from loadline.sim.engine.timing import EngineTiming
from loadline.sim.engine.waiting_queue import WaitingQueue

# An admission must leave this fraction of the cache free for the growth of the others, or it would be preempted soon.
_WATERMARK_RATIO = 0.01
# Within a run the iteration time is a straight line between its first and its last iteration. Runs end when the batch
# has grown by this share of the cache: with the measured profiles the time of a request then differs by less than
# 0.1% from that computed token by token.
_RUN_GROWTH_RATIO = 1 / 64


class SimulatedEngine:
    """One engine. Times are virtual ms; a time before the last one counts as the last one."""

    def __init__(self, knobs: EngineKnobs, timing: EngineTiming) -> None:
        self.knobs = knobs
        self._timing = timing
        self._pass_ms = timing.prefill_ms(0)
        self._watermark_blocks = int(knobs.kv_blocks_total * _WATERMARK_RATIO)
        self._run_growth_tokens = int(knobs.kv_blocks_total * knobs.block_size_tokens * _RUN_GROWTH_RATIO)
        self._now_ms = 0.0
        self._sequences: dict[str, Sequence] = {}
        self._queue = WaitingQueue()
        self._prefilling: list[Sequence] = []  # in the order of admission
        self._prefilling_blocks = 0
        self._prefilling_tokens = 0  # left to compute
        self._batch = RunningBatch(knobs.block_size_tokens)
        self._leaving: list[tuple[Sequence, bool]] = []  # (leaves after this step, emits an event)
        self._step: EngineStep | None = None
        self._events: list[EngineEvent] = []
        self._ttft_ms: float | None = None
        self._itl_ms: float | None = None
        self._isl_tokens: float | None = None
        self._iteration_ms: float | None = None

    @property
    def held(self) -> list[str]:
        """Ids of all requests inside, in the order of submission."""
        return list(self._sequences)

    def migratable_requests(self) -> list[MigratableRequest]:
        """Return the requests inside as of the last time: running ones first, then waiting ones.

        A prompt in prefill cannot migrate. The remaining tokens of a request are unknown.
        """
        done = 0 if self._step is None else self._step.iterations_done(self._now_ms)
        running = [(one, self._batch.generated(one) + done) for one in self._batch.members]
        return [
            *(one.migratable(generated) for one, generated in running if not one.leaving),
            *(one.migratable(one.generated_tokens, movable=False) for one in self._prefilling if not one.leaving),
            *(one.migratable(one.generated_tokens, waiting=True) for one in self._queue.waiting),
        ]

    def kv_tokens(self, request_id: str) -> int:
        """Return the KV tokens of a request as of the last time; 0 without a cache or when it is not inside."""
        sequence = self._sequences.get(request_id)
        if sequence is None or not sequence.cached:
            return 0
        if sequence not in self._batch or self._step is None:
            return sequence.kv_tokens
        tokens_now = self._batch.generated(sequence) + self._step.iterations_done(self._now_ms)
        return sequence.request.isl_tokens + tokens_now - 1

    def kv_tokens_max(self, request_id: str) -> int:
        """Return the KV tokens that a request has at its end; 0 when it is not inside."""
        sequence = self._sequences.get(request_id)
        return 0 if sequence is None else sequence.request.isl_tokens + sequence.request.osl_tokens - 1

    def fits(self, kv_tokens: int, kv_tokens_max: int) -> bool:
        """Return True if a cache of ``kv_tokens`` fits now, and its final size at all."""
        if self.knobs.blocks(kv_tokens_max) > self.knobs.kv_blocks_total:
            return False
        done = 0 if self._step is None else self._step.iterations_done(self._now_ms)
        used = self._batch.blocks(done) + self._prefilling_blocks
        return used + self.knobs.blocks(kv_tokens) <= self.knobs.kv_blocks_total

    def submit(self, request: Request, now_ms: float) -> None:
        """Submit a request. It joins at the end of the current iteration or pass.

        Raises:
            ValueError: A request with this id is inside already, or its numbers are invalid.
        """
        if request.request_id in self._sequences:
            raise ValueError(f"request {request.request_id!r} is held already")
        request.validate()
        if request.prefilled and self.knobs.role == "prefill":
            raise ValueError(f"request {request.request_id!r} has its cache already: it needs a decode engine")
        self._advance_to(now_ms)
        if self.knobs.blocks_needed(request.isl_tokens, request.osl_tokens) > self.knobs.kv_blocks_total:
            self._emit("refused", request.request_id, self._now_ms)
            return
        sequence = Sequence(request, self._now_ms, request.generated_tokens, request.prefilled)
        self._sequences[request.request_id] = sequence
        self._queue.append(sequence)
        # A run ends when the first waiting request fits, so a request behind others changes nothing.
        if self._queue.size == 1:
            self._interrupt()

    def abort(self, request_id: str, now_ms: float) -> bool:
        """Drop a request, at the end of the current iteration if it runs. False when it is not inside."""
        if request_id not in self._sequences:
            return False
        self._advance_to(now_ms)
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.leaving:
            return False
        if self._queue.remove(sequence):
            del self._sequences[request_id]
        else:
            self._leave_after_step(sequence, reported=False)
        self._interrupt()
        return True

    def detach(self, request_id: str, now_ms: float) -> Request | None:
        """Remove a request and return it for submission to another engine: the last stage of a migration.

        A waiting request leaves now. A running one leaves at the end of the current iteration or pass, with the token
        of that iteration; the event ``detached`` has the time. None when the request is not inside or already leaving,
        finishes with this iteration, or is in prefill.
        """
        self._advance_to(now_ms)
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.leaving:
            return None
        generated = sequence.generated_tokens
        if self._queue.remove(sequence):
            del self._sequences[request_id]
            self._emit("detached", request_id, self._now_ms, sequence)
            self._interrupt()  # the next in the queue may fit
        elif sequence in self._batch and self._step is not None:
            self._step.truncate(self._now_ms)
            generated = self._batch.generated(sequence) + (self._step.iterations if self._step.decodes else 0)
            if generated >= sequence.request.osl_tokens:
                return None
            self._leave_after_step(sequence, reported=True)
        else:
            return None
        return replace(sequence.request, generated_tokens=generated, prefilled=sequence.cached, cached_tokens=0)

    def advance(self, now_ms: float) -> list[EngineEvent]:
        """Run until a time and return the events since the last call, in order of time."""
        self._advance_to(now_ms)
        events, self._events = self._events, []
        return events

    def next_event_ms(self) -> float | None:
        """Return the end of the current step; None when idle."""
        return None if self._step is None else self._step.end_ms

    def next_iteration_ms(self) -> float | None:
        """Return the end of the current iteration, at which its tokens exist; None when idle."""
        step = self._step
        return None if step is None else step.end_after(step.iterations_done(self._now_ms) + 1)

    def load(self) -> WorkerSample:
        """Return a load sample as of the last time; the publisher numbers and stamps it."""
        step, batch, queue, knobs = self._step, self._batch, self._queue, self.knobs
        done = 0 if step is None else step.iterations_done(self._now_ms)
        iteration_ms = self._iteration_ms if step is None else step.iteration_ms(done)
        return WorkerSample(
            sequence=0,
            timestamp_ms=0,
            kv_blocks_used=batch.blocks(done) + self._prefilling_blocks,
            kv_blocks_total=knobs.kv_blocks_total,
            waiting_requests=queue.size,
            running_requests=batch.size + len(self._prefilling),
            queued_prefill_tokens=queue.prefill_tokens,
            active_prefill_tokens=self._prefilling_tokens,
            decode_tokens=batch.kv_tokens(done),
            decode_batch_requests=batch.size,
            waiting_to_decode_tokens=queue.cached_tokens,
            waiting_to_decode_requests=0 if knobs.role == "prefill" else queue.size,
            ttft_ms=self._ttft_ms,
            itl_ms=iteration_ms if step is not None and step.decodes else self._itl_ms,
            isl_tokens=self._isl_tokens,
            iteration_ms=iteration_ms,
            unallocated_prefill_tokens=0,  # an admitted prompt has all its blocks
        )

    def _advance_to(self, now_ms: float) -> None:
        while (step := self._step) is not None and step.end_ms <= now_ms:
            self._step = None
            self._complete_step(step)
            self._start_step(step.end_ms)
        if now_ms > self._now_ms:  # noqa: PLR1730 - max() takes 3x
            self._now_ms = now_ms

    def _interrupt(self) -> None:
        """End a run of decode iterations with the current iteration after a change; start an idle engine."""
        if self._step is None:
            self._start_step(self._now_ms)
        else:
            self._step.truncate(self._now_ms)

    def _start_step(self, at_ms: float) -> None:
        if self._queue.size:
            self._admit()
        if self._batch.size and (self.knobs.chunked_prefill or not self._prefilling):
            self._preempt(at_ms)
        if self._prefilling:
            self._step = self._prefill_step(at_ms)
        elif self._batch.size:
            self._step = self._decode_step(at_ms)

    def _admit(self) -> None:
        """Admit waiting requests that fit. Those with a cache join the batch, the others need prefill first."""
        knobs, batch, prefilling = self.knobs, self._batch, self._prefilling
        budget_tokens = knobs.max_batched_tokens - batch.size * knobs.chunked_prefill
        budget_tokens -= self._prefilling_tokens
        while self._queue.size and batch.size + len(prefilling) < knobs.max_batch_requests:
            head = self._queue.head
            blocks = knobs.blocks(head.kv_tokens)
            free_min = self._watermark_blocks if prefilling or batch.size else 0
            if batch.blocks() + self._prefilling_blocks + blocks + free_min > knobs.kv_blocks_total:
                break
            if head.cached:
                self._queue.remove(head)
                batch.join(head)
            elif budget_tokens >= (1 if knobs.chunked_prefill else head.prefill_tokens) or not prefilling:
                self._queue.remove(head)
                prefilling.append(head)
                tokens = head.prefill_tokens
                self._prefilling_blocks += blocks
                self._prefilling_tokens += tokens
                budget_tokens -= tokens
            else:
                break
            self._isl_tokens = float(head.request.isl_tokens)

    def _preempt(self, at_ms: float) -> None:
        """Preempt the newest requests until the others can each write one more token."""
        while self._batch.blocks(1) + self._prefilling_blocks > self.knobs.kv_blocks_total:
            if self._prefilling:
                newest = self._prefilling[-1]
                self._leave_prefill(newest)
            else:
                newest = self._batch.newest
                self._batch.leave(newest)
            newest.cached, newest.prefilled_tokens = False, 0
            self._queue.prepend(newest)
            self._emit("preempted", newest.request.request_id, at_ms)

    def _prefill_step(self, at_ms: float) -> EngineStep:
        """Return one iteration with prompts: all admitted ones or, chunked, as many tokens as the budget allows."""
        decodes = self.knobs.chunked_prefill and self._batch.size > 0
        chunks = (
            self._prefill_chunks() if self.knobs.chunked_prefill else [(s, s.prefill_tokens) for s in self._prefilling]
        )
        prefill_ms = self._timing.prefill_ms
        batch, took_ms = self._batch, self._pass_ms
        if decodes:
            took_ms = max(self._timing.itl_ms(batch.size, batch.kv_tokens()), took_ms)
        for sequence, tokens in chunks:
            first = sequence.tokens - sequence.prefill_tokens
            took_ms += prefill_ms(first + tokens) - prefill_ms(first)
        return EngineStep(at_ms, took_ms, decodes=decodes, chunks=chunks)

    def _prefill_chunks(self) -> list[PrefillChunk]:
        budget_tokens = self.knobs.max_batched_tokens - self._batch.size
        chunks = []
        for sequence in self._prefilling:
            tokens = min(sequence.prefill_tokens, budget_tokens)
            if tokens == 0:
                break
            chunks.append((sequence, tokens))
            budget_tokens -= tokens
        return chunks

    def _decode_step(self, at_ms: float) -> EngineStep:
        """Return decode iterations until a member finishes, a block is missing, or the batch has grown noticeably."""
        batch, total = self._batch, self.knobs.kv_blocks_total
        most = min(batch.iterations_to_finish(), max(self._run_growth_tokens // batch.size, 1))
        if batch.blocks(most) > total:
            most = bisect_right(range(1, most), total, key=batch.blocks)  # preemption made room for one
        itl_ms, more = self._timing.itl_ms, most - 1
        first_ms = itl_ms(batch.size, batch.kv_tokens())
        ramp_ms = (itl_ms(batch.size, batch.kv_tokens(more)) - first_ms) / more if more else 0.0
        return EngineStep(at_ms, first_ms, ramp_ms, most)

    def _complete_step(self, step: EngineStep) -> None:
        self._iteration_ms = step.iteration_ms(step.iterations - 1)
        if step.decodes:
            self._itl_ms = self._iteration_ms
            self._batch.record_step(step)
            for sequence in self._batch.advance(step.iterations):
                self._finish(sequence, step.end_ms)
        for sequence, tokens in step.chunks:
            sequence.prefilled_tokens += tokens
            self._prefilling_tokens -= tokens
            if sequence.prefill_tokens == 0:
                self._complete_prefill(sequence, step.end_ms)
        for sequence, reported in self._leaving:
            self._release(sequence)
            if reported:
                self._emit("detached", sequence.request.request_id, step.end_ms, sequence)
        self._leaving.clear()

    def _complete_prefill(self, sequence: Sequence, at_ms: float) -> None:
        """Complete a prompt and with it the next token: the first one or, after a preemption, one more."""
        self._leave_prefill(sequence)
        sequence.generated_tokens += 1
        sequence.cached = True
        self._batch.token_gaps.record_token(sequence, at_ms)
        if sequence.is_first and not sequence.leaving:
            self._ttft_ms = at_ms - sequence.submitted_ms
            self._emit("first_token", sequence.request.request_id, at_ms)
        if self.knobs.role == "prefill":
            del self._sequences[sequence.request.request_id]
        elif sequence.generated_tokens == sequence.request.osl_tokens:
            self._finish(sequence, at_ms)
        else:
            self._batch.join(sequence)

    def _finish(self, sequence: Sequence, at_ms: float) -> None:
        if not sequence.leaving:
            self._emit("finished", sequence.request.request_id, at_ms, sequence)
        del self._sequences[sequence.request.request_id]

    def _leave_after_step(self, sequence: Sequence, *, reported: bool) -> None:
        """Let a sequence leave at the end of the current step."""
        sequence.leaving = True
        self._leaving.append((sequence, reported))

    def _release(self, sequence: Sequence) -> None:
        """Free the resources of a leaving sequence, unless it ended with this step."""
        self._sequences.pop(sequence.request.request_id, None)
        if sequence in self._batch:
            self._batch.leave(sequence)
        elif sequence in self._prefilling:
            self._leave_prefill(sequence)

    def _leave_prefill(self, sequence: Sequence) -> None:
        """Remove a sequence from prefill, with what it holds and has left."""
        self._prefilling.remove(sequence)
        self._prefilling_blocks -= self.knobs.blocks(sequence.kv_tokens)
        self._prefilling_tokens -= sequence.prefill_tokens

    def _emit(self, kind: EventKind, name: str, at_ms: float, leaves: Sequence | None = None) -> None:
        gap_ms, token_ms = (leaves.token_gap_max_ms, leaves.last_token_ms) if leaves else (0.0, None)
        self._events.append(EngineEvent(kind, name, at_ms, gap_ms, token_ms if kind == "detached" else None))
