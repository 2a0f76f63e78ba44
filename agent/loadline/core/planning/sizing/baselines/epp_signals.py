"""Signals of llm-d's endpoint picker (EPP), derived from the reports of the workers of a pool.

Its flow control stops the dispatch to saturated workers and holds their requests itself. Here the frontends dispatch at
once, so requests that wait at a worker beyond those that it would have accepted count as held by flow control.

Sources: ``pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization`` of llm-d/llm-d-router at ebab687 for
saturation, with its default thresholds; ``llm_d_epp_inflight_tokens`` in
``guides/workload-autoscaling/keda-epp-token-aware`` of llm-d/llm-d for prompt tokens.
"""

from collections.abc import Iterator
from typing import Final

from loadline.core.fleet import estimates
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import MICRO, WorkerLoad, WorkerState

QUEUE_THRESHOLD: Final = 5
"""Waiting requests at which a worker is saturated."""
KV_USAGE_THRESHOLD: Final = 0.8
"""KV usage at which a worker is saturated."""


def pool_saturation(pool: Pool) -> float:
    """Return the mean saturation of the ready workers; a silent worker counts as saturated."""
    scores = [
        max(load.waiting / QUEUE_THRESHOLD, load.kv_micro / MICRO / KV_USAGE_THRESHOLD) for load in _reported(pool)
    ]
    return (sum(scores) + pool.ready - len(scores)) / pool.ready


def held_requests(pool: Pool) -> float:
    """Return the requests that flow control would hold; those of silent workers are the mean of the others."""
    held = 0
    for load in _reported(pool):
        accepted = QUEUE_THRESHOLD if load.kv_micro < KV_USAGE_THRESHOLD * MICRO else 0
        held += max(0, load.waiting - accepted)
    return _extrapolated(held, pool.load.queue_reporting, pool)


def dispatched_requests(pool: Pool) -> float:
    """Return the requests in flight at the workers without those that flow control would hold."""
    in_flight = _extrapolated(pool.load.waiting + pool.load.running, pool.load.queue_reporting, pool)
    return in_flight - held_requests(pool)


def prompt_tokens(pool: Pool, isl_tokens: float) -> tuple[float, int]:
    """Return the prompt tokens that are dispatched and not computed yet, and the workers that those of are known.

    An idle worker says nothing of workers whose prompts have an unknown length.

    Args:
        pool: The pool.
        isl_tokens: Mean prompt length where a worker reports none; 0: unknown.
    """
    loads = [_prompt_tokens(worker, isl_tokens) for worker in pool.workers.values() if worker.counted]
    known = [tokens for tokens in loads if tokens is not None]
    if len(known) < len(loads):
        known = [tokens for tokens in known if tokens]
    return _extrapolated(sum(known), len(known), pool), len(known)


def _prompt_tokens(worker: WorkerState, isl_tokens: float) -> float | None:
    """Return the prompt tokens at a worker; None if those of a rank are unknown."""
    ranks = [estimates.prompt_tokens(one, worker.record, isl_tokens) for one in worker.latest if one is not None]
    known = [sum(tokens) for tokens in ranks if tokens is not None]
    return sum(known) if known and len(known) == len(ranks) else None


def _reported(pool: Pool) -> Iterator[WorkerLoad]:
    """Yield the loads of the ready workers that report."""
    return (worker.load for worker in pool.workers.values() if worker.counted)


def _extrapolated(total: float, reporting: int, pool: Pool) -> float:
    return total / reporting * pool.ready if reporting else 0.0
