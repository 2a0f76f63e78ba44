"""Driver of a scaler: applies decisions by setting the replicas of a platform's pools.

``replica_plan`` (pure) decides and the platform acts. Each pool has one task, which compares its state with the current
decision whatever woke it. So no pool has two writers or waits for another, and a scaler that was stopped between any
two of its steps continues with the current decision, which it requests.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from loadline.adapters.logs import bounded
from loadline.client.received_decision import ReceivedDecision
from loadline.client.resources import running, wait_at_most, wait_until_stopped
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget, Victim, VictimRule
from loadline.scalers.platform import (
    Platform,
    PlatformError,
    PlatformWait,
    PoolKey,
    PoolObservation,
    WatchingPlatform,
)
from loadline.scalers.replica_plan import ReplicaPlan, plan_replicas

CALL_TIMEOUT_S: Final = 30.0
"""Time limit of each call; the calls of a step are not limited together, or slow ones would never set a count."""
BACKOFF_S: Final = 0.25
BACKOFF_MAX_S: Final = 30.0
_RESYNC_S: Final = 30.0
"""Interval of observations without a sign of a change, since a platform may have lost one."""
_TURN_S: Final = 0.25
"""Interval at which the drain reports and the deadline of a decision are checked; all else wakes a pool at once."""

_log = bounded("scaler")
Answer = TypeVar("Answer")


class _Progress(Struct, frozen=True):
    """Result of a pool's last step."""

    existing: int | None
    detail: str
    done: bool = False


class _Release(Struct, frozen=True):
    """Workers of a pool that may be removed."""

    drained: frozenset[str] = frozenset()
    """Victims that are drained."""
    awaiting: frozenset[Victim] = frozenset()
    """Others that are drained and await their removal, such as victims of a decision that was replaced."""
    expired: bool = False
    """True if all victims may be removed."""


class _CurrentDecision:
    """The newest decision of a model, and what was reported of it."""

    def __init__(self, received: ReceivedDecision) -> None:
        self.received = received
        self.progress: dict[str, _Progress] = {}
        self.reported: tuple[bool, dict[str, int], str] | None = None
        """Last report: True if it is done, existing workers by pool, and the reasons."""

    def observed(self) -> dict[str, int]:
        """Return the number of existing workers by pool."""
        return {pool: each.existing for pool, each in self.progress.items() if each.existing is not None}

    def detail(self) -> str:
        """Return the reasons why the decision is not done, or why its workers are not ready any more."""
        return "; ".join(f"{pool}: {each.detail}" for pool, each in sorted(self.progress.items()) if each.detail)

    def done(self) -> bool:
        """Return True if all pools have reached their targets."""
        return len(self.progress) == len(self.received.targets) and all(p.done for p in self.progress.values())


class _PoolTask:
    """A pool, and the decision in force for it."""

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self.wake = asyncio.Event()
        self.failures = 0
        self.received: ReceivedDecision | None = None
        self.begun = False
        """True once the decision was tried in this pool."""
        self.reached = False
        """True once the decision was done in this pool."""
        self.release = _Release()
        """Victims that might be removed at the last step."""
        self.requested: int | None = None
        """Replicas requested in the last step, until the platform has them."""

    def delay_s(self) -> float:
        """Return the time until the next step, unless the pool is woken."""
        if not self.failures:
            return _RESYNC_S if self.requested is None else _TURN_S
        return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(self.failures - 1, 16))


class ReplicaScaler:
    """Scaler that applies decisions by setting replicas.

    Args:
        platform: The platform, entered.
        scaler: Source of decisions, entered.
    """

    def __init__(self, platform: Platform, scaler: ScalerClient) -> None:
        self._platform = platform
        self._scaler = scaler
        self._pools = {key: _PoolTask(key) for key in platform.victims}
        self._current: dict[str, _CurrentDecision] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Apply decisions until ``stop`` is set. The end of the scaler changes nothing on the platform."""
        works = {"decisions": self._receive(), "changes": self._follow_changes()}
        works |= {f"pool {key.model}/{key.pool}": self._run_pool(pool) for key, pool in self._pools.items()}
        async with AsyncExitStack() as stack:
            tasks = [await stack.enter_async_context(running(work, name)) for name, work in works.items()]
            await wait_until_stopped(stop, *tasks)

    async def _record_existing(self, pool: PoolKey) -> None:
        """Record the replicas of a pool, of which the leader of the first decision must know."""
        try:
            seen = await _answer(self._platform.observe(pool))
        except PlatformError as error:
            _log.warning("platform_failed", model=pool.model, pool=pool.pool, detail=str(error))
        else:
            self._scaler.record_existing(pool.model, pool.pool, seen.replicas)

    async def _receive(self) -> None:
        await asyncio.gather(*map(self._record_existing, self._pools))
        async for received in self._scaler:
            rules = self._rules(received.model)
            refusal = _refusal(received, rules)
            if refusal:
                await self._scaler.refuse(received, refusal, rules)
                _log.warning("decision_refused", decision=received.decision.decision_id, detail=refusal)
                continue
            await self._scaler.accept(received, rules)
            self._current[received.model] = _CurrentDecision(received)
            for name in received.targets:
                pool = self._pools[PoolKey(received.model, name)]
                pool.received, pool.requested = received, None
                pool.begun = pool.reached = False
                pool.wake.set()
            targets = {name: target.replicas for name, target in received.targets.items()}
            _log.info("decision_accepted", decision=received.decision.decision_id, targets=targets)

    async def _follow_changes(self) -> None:
        while True:
            changed = await self._platform.changed()
            for pool in [self._pools[key] for key in self._pools if changed is None or key in changed]:
                if not pool.failures:  # otherwise changes elsewhere would end its backoff
                    pool.wake.set()

    async def _run_pool(self, pool: _PoolTask) -> None:
        while True:
            await self._sleep(pool)
            pool.wake.clear()
            received = pool.received
            if received is None:
                await self._record_existing(pool.key)  # others may set it until a leader decides
                continue
            try:
                progress = await self._step(pool, received)
                pool.failures = 0
            except PlatformError as error:
                pool.failures += 1
                _log.warning("platform_failed", model=pool.key.model, pool=pool.key.pool, detail=str(error))
                progress = _Progress(None, str(error), done=pool.reached)
            await self._report(pool, received, progress)

    async def _sleep(self, pool: _PoolTask) -> None:
        """Wait until a pool is due: woken, after its delay, or because more victims may be removed."""
        clock = asyncio.get_running_loop().time
        due_s = clock() + pool.delay_s()
        while True:
            received = None if pool.reached or pool.failures else pool.received
            left_s = due_s - clock()
            wait_s = left_s if received is None else min(left_s, _TURN_S)
            if await wait_at_most(pool.wake, wait_s) or wait_s == left_s:
                return
            if received is not None and self._release(pool.key, received) != pool.release:
                return

    async def _step(self, pool: _PoolTask, received: ReceivedDecision) -> _Progress:
        """Observe a pool and request the replicas that the decision needs.

        Raises:
            PlatformError: The platform failed.
        """
        key, target = pool.key, received.targets[pool.key.pool]
        if not pool.begun:
            pool.begun = True
            await self._change_known(pool, target)
        seen = await _answer(self._platform.observe(key))
        if pool.reached:
            # Workers beyond the target may serve by now: another decision names those to remove.
            plan = ReplicaPlan(max(seen.replicas, target.replicas), done=True, waits_for=seen.detail)
        else:
            pool.release = self._release(key, received)
            plan = self._plan(key, target, pool.release, seen)
        if plan.replicas != seen.replicas:
            try:
                await self._request(pool, received, plan, seen.replicas)
            except PlatformWait as wait:
                return _Progress(_existing(seen), str(wait), done=pool.reached)
        else:
            pool.requested = None
        if pool.received is received:
            pool.reached = plan.done
        return _Progress(_existing(seen), plan.waits_for, done=plan.done)

    def _plan(self, key: PoolKey, target: PoolTarget, release: _Release, seen: PoolObservation) -> ReplicaPlan:
        """Plan the next step; drained workers that exist are victims too."""
        existing = seen.workers or frozenset()
        awaiting = sorted((one for one in release.awaiting if one.worker in existing), key=lambda one: one.worker)
        target = replace(target, victims=(*target.victims, *awaiting))
        drained = release.drained | {one.worker for one in awaiting}
        return plan_replicas(self._platform.victims[key], target, drained, seen, expired=release.expired)

    async def _change_known(self, pool: _PoolTask, target: PoolTarget) -> None:
        """Request a new decision's count before the pool is observed, if no state of its workers can alter the plan.

        Raises:
            PlatformError: The platform failed.
        """
        if target.victims or not isinstance(self._platform, WatchingPlatform):
            return
        lower = self._platform.victims[pool.key] == "unknown"
        previous = await _answer(self._platform.change_known(pool.key, target.replicas, lower=lower))
        if previous is not None:
            _log_change(pool.key, previous, target.replicas)

    async def _request(self, pool: _PoolTask, received: ReceivedDecision, plan: ReplicaPlan, previous: int) -> None:
        if plan.removal:
            await _answer(self._platform.prefer_removal(pool.key, plan.removal))
        if pool.received is not received:  # a newer decision may need the workers that this one removes
            return
        unheeded, pool.requested = pool.requested == plan.replicas, None
        await _answer(self._platform.set_replicas(pool.key, plan.replicas))
        if pool.received is received:
            pool.requested = plan.replicas
        if unheeded:
            problem = f"it has {previous} replicas although {plan.replicas} were requested"
            raise PlatformError(f"{problem}: another autoscaler or a limit sets them")
        _log_change(pool.key, previous, plan.replicas)

    async def _report(self, pool: _PoolTask, received: ReceivedDecision, progress: _Progress) -> None:
        """Report a decision if its progress has changed; also after it is done, so that its status has the reason."""
        current = self._current[pool.key.model]
        if current.received is not received:
            return
        current.progress[pool.key.pool] = progress
        rules, before = self._rules(pool.key.model), current.reported
        done, observed, detail = current.done(), current.observed(), current.detail()
        if done:
            observed = {name: target.replicas for name, target in received.targets.items()}
        current.reported = done, observed, detail
        if current.reported == before:
            return
        if not done:
            await self._scaler.progress(received, observed, detail, rules)
            return
        await self._scaler.complete(received, observed, rules, detail=detail)
        if before is None or not before[0]:
            _log.info("decision_done", decision=received.decision.decision_id, observed=observed)

    def _release(self, key: PoolKey, received: ReceivedDecision) -> _Release:
        """Return the workers of a pool that may be removed by now."""
        victims = received.targets[key.pool].victims
        drained = (v.worker for v in victims if self._scaler.drained(key.model, key.pool, v.worker, v.incarnation))
        named = {victim.worker for victim in victims}
        awaiting = self._scaler.awaiting_removal(key.model, key.pool)
        others = (Victim(worker, incarnation) for worker, incarnation in awaiting.items() if worker not in named)
        return _Release(frozenset(drained), frozenset(others), received.drain_expired)

    def _rules(self, model: str) -> Mapping[str, VictimRule]:
        """Return the rule of each pool of a model, which all answers carry."""
        return {key.pool: rule for key, rule in self._platform.victims.items() if key.model == model}


def _log_change(pool: PoolKey, previous: int, replicas: int) -> None:
    _log.info("replicas_set", model=pool.model, pool=pool.pool, previous=previous, replicas=replicas)


async def _answer(call: Awaitable[Answer]) -> Answer:
    """Return the answer to a call.

    Raises:
        PlatformError: The platform failed or did not answer in time.
    """
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await call
    except TimeoutError as error:
        raise PlatformError(f"the platform did not answer within {CALL_TIMEOUT_S:g} s") from error


def _refusal(received: ReceivedDecision, rules: Mapping[str, VictimRule]) -> str:
    """Return the reason to refuse a decision; empty: there is none."""
    unknown = sorted(set(received.targets) - set(rules))
    if unknown:
        return f"no such pool is configured: {', '.join(unknown)}"
    for name, target in sorted(received.targets.items()):
        removes = target.victims or target.replicas < target.previous
        if removes and target.victim_rule != rules[name]:
            return f"the platform selects the workers of {name} to remove by the rule {rules[name]}"
    return ""


def _existing(seen: PoolObservation) -> int:
    """Return the number of existing workers, as far as the platform can tell."""
    if seen.workers is not None:
        return len(seen.workers)
    return seen.replicas if seen.ready is None else seen.ready
