"""Reference engine that computes one iteration after the other for every request: slow and simple.

It shares only inputs and outputs with the simulated engine, and follows the rules in that engine's docstring.
"""

from dataclasses import dataclass

from loadline.sim.engine import EngineEvent, EngineKnobs, EngineTiming, Request
from loadline.sim.engine.request import EventKind


@dataclass(eq=False)
class ReferenceJob:
    request: Request
    generated: int
    has_cache: bool
    computed: int = 0
    aborted: bool = False
    detached: bool = False

    token_ms: float | None = None
    gap_ms: float = 0.0

    def token(self, at_ms: float) -> None:
        if self.token_ms is not None:
            self.gap_ms = max(self.gap_ms, at_ms - self.token_ms)
        self.token_ms = at_ms

    @property
    def tokens(self) -> int:
        return self.request.isl_tokens + self.generated

    @property
    def to_compute(self) -> int:
        return 0 if self.has_cache else max(self.tokens - self.request.cached_tokens, 1) - self.computed

    @property
    def kv_tokens(self) -> int:
        return self.tokens - 1 if self.has_cache else self.tokens


class ReferenceEngine:
    def __init__(self, knobs: EngineKnobs, timing: EngineTiming) -> None:
        self.knobs = knobs
        self.timing = timing
        self.queue: list[ReferenceJob] = []
        self.prompts: list[ReferenceJob] = []
        self.batch: list[ReferenceJob] = []
        self.leaving: list[ReferenceJob] = []  # in the order in which they were taken
        self.chunks: list[tuple[ReferenceJob, int]] = []
        self.decodes = False
        self.end_ms: float | None = None
        self.now_ms = 0.0
        self.events: list[EngineEvent] = []

    def submit(self, request: Request, now_ms: float) -> None:
        self._run(now_ms)
        end = request.isl_tokens if self.knobs.role == "prefill" else request.isl_tokens + request.osl_tokens - 1
        if self._blocks_of(end) > self.knobs.kv_blocks_total:
            self._emit("refused", request, now_ms)
            return
        self.queue.append(ReferenceJob(request, request.generated_tokens, request.prefilled))
        if self.end_ms is None:
            self._begin(now_ms)

    def abort(self, request_id: str, now_ms: float) -> bool:
        self._run(now_ms)
        job = self._find(request_id)
        if job is None:
            return False
        job.aborted = True
        self.queue = [waiting for waiting in self.queue if waiting is not job]
        return True

    def detach(self, request_id: str, now_ms: float) -> Request | None:
        self._run(now_ms)
        job = self._find(request_id)
        if job is None or job in self.prompts:
            return None
        generated = job.generated + (job in self.batch and self.decodes)
        if generated == job.request.osl_tokens:
            return None
        job.detached = True
        if job in self.queue:
            self.queue.remove(job)
            self._emit("detached", job.request, now_ms, job)
        else:
            self.leaving.append(job)
        old = job.request
        return Request(old.request_id, old.isl_tokens, old.osl_tokens, generated, prefilled=job.has_cache)

    def advance(self, now_ms: float) -> list[EngineEvent]:
        self._run(now_ms)
        events, self.events = self.events, []
        return events

    def next_event_ms(self) -> float | None:
        return self.end_ms

    def blocks(self) -> int:
        return sum(self._blocks_of(job.kv_tokens) for job in self.batch + self.prompts)

    def _find(self, request_id: str) -> ReferenceJob | None:
        inside = self.queue + self.prompts + self.batch
        return next((j for j in inside if j.request.request_id == request_id and not (j.aborted or j.detached)), None)

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.knobs.block_size_tokens)

    def _emit(self, kind: EventKind, request: Request, at_ms: float, job: ReferenceJob | None = None) -> None:
        gap_ms, token_ms = (job.gap_ms, job.token_ms) if job else (0.0, None)
        self.events.append(
            EngineEvent(kind, request.request_id, at_ms, gap_ms, token_ms if kind == "detached" else None)
        )

    def _run(self, now_ms: float) -> None:
        while self.end_ms is not None and self.end_ms <= now_ms:
            at_ms, self.end_ms = self.end_ms, None
            self._end(at_ms)
            self._begin(at_ms)
        self.now_ms = max(self.now_ms, now_ms)

    def _begin(self, at_ms: float) -> None:
        self._admit()
        if not self.prompts or self.knobs.chunked_prefill:
            self._make_room(at_ms)
        self.decodes = bool(self.batch) and (self.knobs.chunked_prefill or not self.prompts)
        if not self.prompts and not self.batch:
            return
        room = self.knobs.max_batched_tokens - len(self.batch) if self.knobs.chunked_prefill else 10**9
        self.chunks = []
        for job in self.prompts:
            chunk = min(job.to_compute, room)
            room -= chunk
            if chunk > 0:
                self.chunks.append((job, chunk))
        self.end_ms = at_ms + self._duration_ms()

    def _duration_ms(self) -> float:
        kv_tokens = sum(job.kv_tokens for job in self.batch)
        itl_ms = self.timing.itl_ms(len(self.batch), kv_tokens) if self.decodes else 0.0
        if not self.chunks:
            return itl_ms
        took_ms = max(itl_ms, self.timing.prefill_ms(0))
        for job, chunk in self.chunks:
            cached = job.tokens - job.to_compute
            took_ms += self.timing.prefill_ms(cached + chunk) - self.timing.prefill_ms(cached)
        return took_ms

    def _admit(self) -> None:
        chunked = self.knobs.chunked_prefill
        room = self.knobs.max_batched_tokens - sum(job.to_compute for job in self.prompts)
        room -= len(self.batch) if chunked else 0
        while self.queue:
            job = self.queue[0]
            inside = len(self.batch) + len(self.prompts)
            free_min = int(0.01 * self.knobs.kv_blocks_total) if inside else 0
            if inside == self.knobs.max_batch_requests:
                return
            if self.blocks() + self._blocks_of(job.kv_tokens) + free_min > self.knobs.kv_blocks_total:
                return
            if not job.has_cache:
                if self.prompts and room < (1 if chunked else job.to_compute):
                    return
                room -= job.to_compute
            (self.batch if job.has_cache else self.prompts).append(self.queue.pop(0))

    def _make_room(self, at_ms: float) -> None:
        def needed() -> int:
            growing = sum(self._blocks_of(job.kv_tokens + 1) for job in self.batch)
            return growing + sum(self._blocks_of(job.kv_tokens) for job in self.prompts)

        while self.batch and needed() > self.knobs.kv_blocks_total:
            job = (self.prompts or self.batch).pop()
            job.has_cache, job.computed = False, 0
            self.queue.insert(0, job)
            self._emit("preempted", job.request, at_ms)

    def _end(self, at_ms: float) -> None:
        if self.decodes:
            for job in self.batch:
                job.generated += 1
                job.token(at_ms)
                if job.generated == job.request.osl_tokens and not job.aborted:
                    self._emit("finished", job.request, at_ms, job)
        for job, chunk in self.chunks:
            job.computed += chunk
            if job.to_compute > 0:
                continue
            job.has_cache = True
            job.generated += 1
            job.token(at_ms)
            self.prompts.remove(job)
            self.batch.append(job)
            if not job.aborted and not job.request.prefilled and job.generated == job.request.generated_tokens + 1:
                self._emit("first_token", job.request, at_ms)
            if job.generated == job.request.osl_tokens and self.knobs.role != "prefill" and not job.aborted:
                self._emit("finished", job.request, at_ms, job)
        self.chunks = []
        for job in self.leaving:
            self._emit("detached", job.request, at_ms, job)
        self.leaving = []
        self.prompts = [job for job in self.prompts if not job.aborted]
        remaining = [] if self.knobs.role == "prefill" else self.batch
        self.batch = [j for j in remaining if j.generated < j.request.osl_tokens and not (j.aborted or j.detached)]
