"""Attempts to have one request answered, at one worker after the other."""

import time
from typing import Any, Final

import msgspec

from loadline.adapters.logs import bounded
from loadline.gateway.backends import Backend
from loadline.gateway.engine_errors import is_of_other_model, refused_status
from loadline.gateway.errors import ApiError
from loadline.gateway.model import ServedModel
from loadline.gateway.traffic import Measured

ATTEMPTS_MAX: Final = 3
"""Answers that may fail before the client gets the failure: a request that ends engines must not end all of them."""
_RETRIED: Final = frozenset({429, 500, 502, 503, 504, 508})
"""Statuses with which another worker may do better; 508: its address is this gateway's."""
FIRST_ERROR: Final = 400
"""Lowest status of an answer that is no success."""
_SHOWN_BYTES: Final = 200

_log = bounded("gateway")


class Attempts:
    """Attempts of one request.

    Args:
        model: Its model.
        arrived_s: Time of its arrival, from which it waits for workers.
        body_bytes: Size of its body.
    """

    def __init__(self, model: ServedModel, arrived_s: float, body_bytes: int) -> None:
        self._model = model
        self._body_bytes = body_bytes
        self._deadline_s = arrived_s + model.hold_s
        self._failed: list[Backend] = []
        """Workers whose answer failed since the last output."""
        self._unreached: set[Backend] = set()
        self._is_blamed = False
        """True once a worker said after a success that the request is at fault."""
        self._was_served = False
        """True once a worker had the request: from then on it is refused only after its time."""

    @property
    def exhausted(self) -> bool:
        """True if no further attempt is made."""
        return len(self._failed) >= ATTEMPTS_MAX

    async def next_backend(self) -> Backend:
        """Return the worker for the next attempt.

        Raises:
            ApiError: There is none.
        """
        avoided = {*self._failed, *self._unreached}
        backends, was_served = self._model.backends, self._was_served
        return await backends.choose(self._deadline_s, self._body_bytes, avoided, was_served=was_served)

    def unreachable(self, backend: Backend, error: Exception) -> None:
        """Record that nothing could be sent; the request waits until a worker can be reached."""
        self._model.backends.mark_unreachable(backend)
        self._unreached.add(backend)
        record = backend.record
        _log.warning("unreachable", model=record.model, worker=record.worker, address=record.address, detail=str(error))
        self._model.metrics.retried(record.model)

    def failed(self, backend: Backend, reason: str, body: str = "") -> None:
        """Record a failed answer, and restart the time limit: the request may have waited long in the engine's queue.

        Args:
            backend: The worker that answered.
            reason: Reason, which the client gets if no other attempt follows.
            body: Beginning of the answer, for the log.

        Raises:
            ApiError: It was the last attempt.
        """
        self._failed.append(backend)
        self._begin_time()
        record = backend.record
        _log.warning("engine_failed", model=record.model, worker=record.worker, detail=reason, body=body)
        if self.exhausted:
            raise ApiError(502, f"{ATTEMPTS_MAX} workers of {record.model!r} failed; the last one: {reason}")
        self._model.metrics.retried(record.model)

    def may_retry(self, backend: Backend, status: int, body: bytes) -> bool:
        """Record an answer; return True if the next worker should be tried, False if the client gets it."""
        is_other = is_of_other_model(status, body)
        if is_other:
            self._model.backends.mark_other_model(backend)
        if not (is_other or status in _RETRIED) or len(self._failed) + 1 >= ATTEMPTS_MAX:
            return False
        self.failed(backend, f"it answered {status}")
        return True

    def client_status(self, backend: Backend, status: int, body: bytes) -> int | None:
        """Record a whole answer; return the status with which the client gets it.

        Returns:
            The status; None: the next worker should be tried.

        Raises:
            ApiError: It was the last attempt.
        """
        refused = None
        if status < FIRST_ERROR and b'"error"' in body:  # most answers are decoded once
            refused = refused_status(_decoded(body).get("error"))
        if refused is not None:
            return refused if self.is_confirmed(backend, refused) else None
        return None if self.may_retry(backend, status, body) else status

    def is_confirmed(self, backend: Backend, status: int) -> bool:
        """Record an error after a success that blames the request; return True if the client gets it.

        A second worker must blame it too, as the first one may have failed.

        Raises:
            ApiError: It was the last attempt.
        """
        if self._is_blamed:  # with any such status: engines refuse one request as 400, 413 or 422, all to be corrected
            return True
        self._is_blamed = True
        self.failed(backend, f"it answered {status} after a success")
        return False

    def finished(self, backend: Backend, body: bytes, measured: Measured) -> bool:
        """Count a whole answer; return False if it is none, or an aborted one, and the next worker should be tried.

        Raises:
            ApiError: It was the last attempt.
        """
        answered = _decoded(body)
        # Such as a proxy's page, or an error with status 200. It may name hosts, so only the log shows it.
        if not isinstance(answered.get("choices"), list) or answered.get("error") is not None:
            self.failed(backend, "its answer is no completion", body[:_SHOWN_BYTES].decode(errors="replace"))
            return False
        if _is_aborted(answered):
            self.failed(backend, "it aborted the request")
            return False
        measured.read_answer(answered)
        self._model.traffic.finish(measured)
        return True

    def progressed(self) -> None:
        """Record that an engine has produced output: earlier failures no longer count, and the time limit restarts."""
        self._failed.clear()
        self._unreached.clear()
        self._begin_time()

    def _begin_time(self) -> None:
        self._was_served = True
        self._deadline_s = time.monotonic() + self._model.hold_s


def _decoded(body: bytes) -> dict[str, Any]:
    """Return an answer; empty if it is no JSON object."""
    try:
        answered = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return answered if isinstance(answered, dict) else {}


def _is_aborted(answered: dict[str, Any]) -> bool:
    """Return True if an engine that is stopping has cut an output off, which vLLM answers with 200."""
    return any(isinstance(one, dict) and one.get("finish_reason") == "abort" for one in answered["choices"])
