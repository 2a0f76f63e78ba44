"""Errors of a profiled engine, each with its remedy."""

from loadline.errors import LoadlineError


class EngineProblem(LoadlineError):
    """An answer with which profiling cannot go on; a retry does not help."""


class EngineUnavailable(EngineProblem):
    """An engine that does not answer, or breaks off; a later try may succeed."""


class RequestRefused(EngineProblem):
    """A request whose form the engine does not accept."""


class ContextTooLong(EngineProblem):
    """A prompt that with its output exceeds the model's context.

    Args:
        text: A sentence.
        context_max: The limit; None: the engine does not say.
    """

    def __init__(self, text: str, context_max: int | None) -> None:
        super().__init__(text)
        self.context_max = context_max
