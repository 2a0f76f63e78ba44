"""What a local scaler does next: the target and the processes that there are, in; starts and signals, out. Pure.

A process is *leaving* once a decision names it as a victim, it says that it is drained, or it is told to end: none of
these is ever taken back. All others are *staying*, and there should be as many of them as the target says.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.vocabulary.decisions import PoolTarget

Signal = Literal["none", "terminate", "kill"]


class ProcessTiming(Struct, frozen=True):
    """The waits of a pool, in ms."""

    linger_ms: int
    """A drained worker may take this long to leave by itself."""
    grace_ms: int
    """From the request to end (SIGTERM) to the end by force (SIGKILL)."""
    settle_ms: int
    """A process younger than this counts as starting; one that dies younger failed to start."""
    restart_backoff_ms: int
    """Wait after a failed start; doubles with every further one."""
    restart_backoff_max_ms: int
    """The longest such wait."""
    start_concurrency: int
    """Processes that may be starting at once."""


class Process(Struct, frozen=True):
    """One worker process that is alive. Times are ms of one monotonic clock."""

    worker: str
    incarnation: int
    """Unix time of its start in ms; a worker's own is the same or later."""
    started_ms: int
    leave_by_ms: int | None = None
    """When its time to drain is over; None: it need not drain."""
    drained_ms: int | None = None
    """When it said that it is empty."""
    signal: Signal = "none"
    """The strongest signal that it was sent."""
    signalled_ms: int = 0

    @property
    def leaving(self) -> bool:
        """Whether it no longer counts for the target."""
        return self.leave_by_ms is not None or self.signal != "none"


class StartFailures(Struct, frozen=True):
    """Failed starts in a row, and when the last one ended."""

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
    """The processes, with those that are now leaving marked: victims, and who says that it is drained."""
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
    processes: Sequence[Process], target: PoolTarget | None, failures: StartFailures, timing: ProcessTiming, now_ms: int
) -> list[ProcessAction]:
    """What to do now for one pool; nothing before its first target is known."""
    actions = [action for process in processes if (action := _termination_step(process, timing, now_ms))]
    if target is None:
        return actions
    staying = sorted((process for process in processes if not process.leaving), key=lambda p: (p.started_ms, p.worker))
    missing = target.replicas - len(staying)
    if missing > 0 and now_ms >= failures.last_ms + backoff_ms(failures.count, timing):
        starting = sum(now_ms - process.started_ms < timing.settle_ms for process in staying)
        count = min(missing, timing.start_concurrency - starting)
        if count > 0:
            actions.append(ProcessAction("start", count=count))
    # The agent names victims among the workers that it knows; above its count are those that it does not: the newest.
    actions += [ProcessAction("terminate", process.worker, reason="surplus") for process in staying[target.replicas :]]
    return actions


def _termination_step(process: Process, timing: ProcessTiming, now_ms: int) -> ProcessAction | None:
    """The next step of a process on its way out, if it is due."""
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
    """How long after the last of so many failed starts in a row the next may be tried."""
    if failures == 0:
        return 0
    # 2**30 times the first wait is above any bound there is.
    return min(timing.restart_backoff_max_ms, timing.restart_backoff_ms << min(failures - 1, 30))


def failures_after_exit(failures: StartFailures, process: Process, timing: ProcessTiming, now_ms: int) -> StartFailures:
    """Count an exit: an end that was asked for, or came after a settled life, is no failed start."""
    if process.leaving:
        return failures
    if now_ms - process.started_ms >= timing.settle_ms:
        return StartFailures()
    return StartFailures(failures.count + 1, now_ms)


def is_reached(processes: Sequence[Process], target: PoolTarget) -> bool:
    """Whether the pool is as the target says: the right count, and every process on its way out is gone."""
    return len(processes) == target.replicas and not any(process.leaving for process in processes)
