"""Planning of a local scaler, pure: from a target and the existing processes to starts and signals.

A process is *leaving* once a decision names it as a victim, it reports that it is drained, or it is signalled; this is
never revoked. All others are *staying*, and their number must reach the target.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.vocabulary.decisions import PoolTarget

Signal = Literal["none", "terminate", "kill"]


class ProcessTiming(Struct, frozen=True):
    """Time limits of a pool's processes, in ms."""

    linger_ms: int
    """Time for a drained worker to exit by itself."""
    grace_ms: int
    """Time from SIGTERM to SIGKILL."""
    settle_ms: int
    """A process younger than this counts as starting."""
    reset_ms: int
    """A process that exits younger than this failed. Engines fail up to minutes after their start."""
    restart_backoff_ms: int
    """Wait after a failed start; doubles with every further one."""
    restart_backoff_max_ms: int
    """Maximum of this wait."""
    start_concurrency: int
    """Processes that may be starting at once."""


class Process(Struct, frozen=True):
    """A running worker process. Times are ms of one monotonic clock."""

    worker: str
    incarnation: int
    """Unix time of its start in ms; a worker's own is the same or later."""
    started_ms: int
    leave_by_ms: int | None = None
    """Deadline of its drain; None: it does not drain."""
    drained_ms: int | None = None
    """Time of its drain report."""
    signal: Signal = "none"
    """Strongest signal sent to it."""
    signalled_ms: int = 0

    @property
    def leaving(self) -> bool:
        """True if it no longer counts towards the target."""
        return self.leave_by_ms is not None or self.signal != "none"


class StartFailures(Struct, frozen=True):
    """Consecutive failed processes, and the time of the last failure."""

    count: int = 0
    last_ms: int = 0


class ProcessAction(Struct, frozen=True):
    """Start ``count`` new processes, or send one process a signal."""

    kind: Literal["start", "terminate", "kill"]
    worker: str = ""
    count: int = 0
    reason: str = ""


def mark_leaving(
    processes: Sequence[Process],
    target: PoolTarget | None,
    drained: AbstractSet[str],
    drain_ttl_ms: int,
    now_ms: int,
) -> list[Process]:
    """Return the processes with those marked as leaving that are victims or report that they are drained."""
    victims = {victim.worker: victim.incarnation for victim in target.victims} if target else {}
    marked = []
    for process in processes:
        seen = process
        # A victim of an earlier incarnation is another worker that had this name.
        if not seen.leaving and victims.get(seen.worker, -1) >= seen.incarnation:
            seen = replace(seen, leave_by_ms=now_ms + drain_ttl_ms)
        if seen.drained_ms is None and seen.worker in drained:
            seen = replace(
                seen, drained_ms=now_ms, leave_by_ms=now_ms if seen.leave_by_ms is None else seen.leave_by_ms
            )
        marked.append(seen)
    return marked


def plan_actions(
    processes: Sequence[Process],
    target: PoolTarget | None,
    failures: StartFailures,
    timing: ProcessTiming,
    now_ms: int,
    *,
    unready: AbstractSet[str] = frozenset(),
) -> list[ProcessAction]:
    """Return the actions for one pool; none to reach a target before the first one is known.

    ``unready``: workers that do not accept connections at their ports.
    """
    actions = [action for process in processes if (action := _termination_step(process, timing, now_ms))]
    if target is None:
        return actions
    staying = [process for process in processes if not process.leaving]
    staying.sort(key=lambda one: (one.worker in unready, one.started_ms, one.worker))
    missing = target.replicas - len(staying)
    if missing > 0 and now_ms >= failures.last_ms + backoff_ms(failures.count, timing):
        starting = sum(now_ms - process.started_ms < timing.settle_ms for process in staying)
        count = min(missing, timing.start_concurrency - starting)
        if count > 0:
            actions.append(ProcessAction("start", count=count))
    # Victims are workers that the agent knows; any surplus beyond them is unknown to it, hence not ready or the newest.
    actions += [ProcessAction("terminate", process.worker, reason="surplus") for process in staying[target.replicas :]]
    return actions


def _termination_step(process: Process, timing: ProcessTiming, now_ms: int) -> ProcessAction | None:
    """Return the next step of a leaving process, if it is due."""
    if process.signal == "kill":
        return None
    if process.signal == "terminate":
        due = now_ms >= process.signalled_ms + timing.grace_ms
        return ProcessAction("kill", process.worker) if due else None
    if process.drained_ms is not None and now_ms >= process.drained_ms + timing.linger_ms:
        return ProcessAction("terminate", process.worker, reason="drained")
    if process.drained_ms is None and process.leave_by_ms is not None and now_ms >= process.leave_by_ms:
        return ProcessAction("terminate", process.worker, reason="drain_deadline")
    return None


def backoff_ms(failures: int, timing: ProcessTiming) -> int:
    """Return the wait in ms after this number of consecutive failed starts."""
    if failures == 0:
        return 0
    # 2**30 times the first wait exceeds every permitted maximum.
    return min(timing.restart_backoff_max_ms, timing.restart_backoff_ms << min(failures - 1, 30))


def failures_after_exit(failures: StartFailures, process: Process, timing: ProcessTiming, now_ms: int) -> StartFailures:
    """Count an exit as a failure, unless it was requested or came after ``reset_ms``."""
    if process.leaving:
        return failures
    if now_ms - process.started_ms >= timing.reset_ms:
        return StartFailures()
    return StartFailures(failures.count + 1, now_ms)


def has_recovered(
    processes: Sequence[Process], target: PoolTarget | None, lived_ms: int, timing: ProcessTiming, now_ms: int
) -> bool:
    """Return True if a pool has its count again, of processes that have run twice as long as the one that failed.

    Args:
        processes: Processes of the pool.
        target: Its target; None: not known.
        lived_ms: Time from start to failure of the process that failed last.
        timing: Time limits of the pool.
        now_ms: Present time.
    """
    staying = [process for process in processes if not process.leaving]
    proven_ms = min(max(2 * lived_ms, timing.settle_ms), timing.reset_ms)
    running = all(now_ms - process.started_ms >= proven_ms for process in staying)
    return running and target is not None and len(staying) >= target.replicas


def is_reached(processes: Sequence[Process], target: PoolTarget) -> bool:
    """Return True if the pool has the target's count and no process is leaving."""
    return len(processes) == target.replicas and not any(process.leaving for process in processes)
