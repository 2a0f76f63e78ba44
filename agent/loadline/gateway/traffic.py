"""Traffic of a model, reported like that of any frontend."""

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from loadline.client.frontend import FrontendClient
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.vocabulary.scalars import TOKENS_MAX
from loadline.gateway.api_request import ApiRequest

# Tokens of a text are four characters long on average in English; what engines report replaces this soon.
_CHARS_PER_TOKEN_FIRST = 4.0
# The ratio follows the last hundred prompts of this length or so.
_FIRST_TOKENS = 1_000.0
_DECAY = 0.99
# vLLM has at most as many outputs of a prompt; their times take 2 MB.
_TIMED_OUTPUTS_MAX = 16_384
_OTHERS = -1
"""Index of all outputs beyond these."""


class TokenRatio:
    """Characters per prompt token, as engines have counted them: lengths are needed before an engine counts."""

    def __init__(self) -> None:
        self._tokens = _FIRST_TOKENS
        self._chars = _FIRST_TOKENS * _CHARS_PER_TOKEN_FIRST

    def learn(self, chars: int, tokens: int) -> None:
        """Learn from a prompt that an engine counted."""
        self._chars = self._chars * _DECAY + chars
        self._tokens = self._tokens * _DECAY + tokens

    def tokens(self, chars: int) -> int:
        """Return the expected tokens of a text."""
        return round(chars * self._tokens / self._chars)


class Measured(Struct):
    """Times and counts of one request. Times are of ``time.monotonic``."""

    arrived_s: float
    chars: int
    first_s: float | None = None
    """Time of the first token; None: unknown."""
    last_s: dict[int, float] = {}
    """Time of the last token of each output of a stream that goes on, by its index."""
    following_s: float = 0.0
    """Time from the first token of an output to its last one, summed over the outputs."""
    isl_tokens: int | None = None
    cached_tokens: int | None = None
    outputs: int = 0
    """Outputs that have begun."""
    osl_tokens: int = 0
    """Tokens of all outputs together."""

    def count_tokens(self, tokens: int, output: int) -> None:
        """Count tokens of an output that arrived now; 16,384 at a time are timed apart, the others as one."""
        now_s = time.monotonic()
        if output not in self.last_s and len(self.last_s) >= _TIMED_OUTPUTS_MAX:
            output = _OTHERS
        if self.first_s is None:
            self.first_s = now_s
        self.outputs += output not in self.last_s
        self.following_s += now_s - self.last_s.get(output, now_s)
        self.last_s[output] = now_s
        self.osl_tokens += tokens

    def end_output(self, output: int) -> None:
        """Forget the times of an output that has ended: a stream may have any number of them."""
        self.last_s.pop(output, None)

    def forget_output(self) -> None:
        """Begin to count anew: another engine begins the answer."""
        self.first_s, self.following_s, self.outputs, self.osl_tokens = None, 0.0, 0, 0
        self.last_s.clear()

    def read_answer(self, answered: dict[str, Any]) -> None:
        """Take counts from an answer that is not streamed."""
        self.outputs = len(answered["choices"])
        self.read_usage(answered.get("usage"))

    def read_usage(self, usage: object) -> None:
        """Take counts from the ``usage`` of an answer."""
        try:
            counted = msgspec.convert(usage, _Usage)
        except msgspec.ValidationError:
            return
        self.isl_tokens, self.osl_tokens = counted.prompt_tokens, counted.completion_tokens
        if counted.prompt_tokens_details is not None:
            cached = counted.prompt_tokens_details.cached_tokens
            self.cached_tokens = None if cached is None else min(cached, counted.prompt_tokens)


# A larger count would spoil the ratio, and with it the lengths of all later arrivals; agents refuse it, too.
_Tokens = Annotated[int, Meta(ge=0, le=int(TOKENS_MAX))]


class _Details(Struct):
    cached_tokens: _Tokens | None = None


class _Usage(Struct):
    prompt_tokens: _Tokens
    completion_tokens: _Tokens = 0
    prompt_tokens_details: _Details | None = None


class ModelTraffic:
    """Reports of the traffic of one model.

    Args:
        frontend: Client that reports it, entered by its owner.
        objectives: Objectives to report attainment of; None: it is not reported.
    """

    def __init__(self, frontend: FrontendClient, objectives: ObjectiveKnobs | None) -> None:
        self.frontend = frontend
        self._objectives = objectives
        self._ratio = TokenRatio()

    def arrive(self, request: ApiRequest) -> Measured:
        """Count a request that arrived."""
        chars, tokens = request.prompt_size()
        self.frontend.arrived(tokens + self._ratio.tokens(chars))
        return Measured(time.monotonic(), chars if not tokens else 0)

    def finish(self, measured: Measured) -> None:
        """Count a request that was answered completely."""
        now_s = time.monotonic()
        if measured.isl_tokens:
            if measured.chars:
                self._ratio.learn(measured.chars, measured.isl_tokens)
            if measured.cached_tokens is not None:
                self.frontend.looked_up(measured.isl_tokens, measured.cached_tokens)
        outputs = max(measured.outputs, 1)
        following = measured.osl_tokens - outputs
        if measured.first_s is None or (following > 0 and not measured.following_s):
            # Its times are unknown, or those of outputs in one chunk each. Within the time that both objectives allow
            # together for an output of the mean length, it met both.
            goal, took_ms = self._objectives, (now_s - measured.arrived_s) * 1_000
            met = None if goal is None else took_ms <= goal.ttft_ms + goal.itl_ms * max(following, 0) / outputs
            self.frontend.finished(measured.osl_tokens, None, None, ttft_met=met, itl_met=met)
            return
        ttft_ms = (measured.first_s - measured.arrived_s) * 1_000
        itl_ms = measured.following_s * 1_000 / following if following > 0 else None
        ttft_met = itl_met = None
        if self._objectives is not None:
            ttft_met = ttft_ms <= self._objectives.ttft_ms
            itl_met = itl_ms is None or itl_ms <= self._objectives.itl_ms
        self.frontend.finished(measured.osl_tokens, ttft_ms, itl_ms, ttft_met=ttft_met, itl_met=itl_met)
