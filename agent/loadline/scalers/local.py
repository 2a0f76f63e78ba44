"""Reference scaler whose workers are processes of this host.

    loadline scaler local --config local.toml

``local_plan`` (pure) decides, ``local_processes`` acts, and ``local_host`` gives each worker GPUs and a port. Without
NATS the scaler keeps its targets: it restarts workers that die and continues drains. Its workers end with it, on
SIGTERM and when it is killed.
"""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadline.adapters import logs, signals
from loadline.adapters.child_process import Child
from loadline.client.resources import running, wait_at_most
from loadline.client.scaler import ReceivedDecision, ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.errors import ConfigError
from loadline.scalers.local_config import LocalKnobs, LocalPoolKnobs, read
from loadline.scalers.local_host import Allotment, HostResources, installed_gpus
from loadline.scalers.local_plan import (
    Process,
    ProcessAction,
    ProcessTiming,
    StartFailures,
    failures_after_exit,
    is_reached,
    mark_leaving,
    plan_actions,
)
from loadline.scalers.local_processes import Lifetime, Lifetimes, fill_template, unix_ms

# Interval at which deadlines and drain reports are checked; decisions and exits wake the scaler at once.
_TURN_S: Final = 0.25
_log = logs.bounded("local_scaler")


class _LocalWorker:
    """A worker: its planned state, its process and its part of the host."""

    def __init__(self, seen: Process, child: Child, allotment: Allotment) -> None:
        self.seen = seen
        self.child = child
        self.allotment = allotment
        self.end_reason = ""


class _LocalPool:
    """Workers and target of one pool."""

    def __init__(self, model: str, knobs: LocalPoolKnobs, numbers: Iterator[int]) -> None:
        self.model = model
        self.knobs = knobs
        self.numbers = numbers
        self.workers: dict[str, _LocalWorker] = {}
        self.target: PoolTarget | None = None
        self.drain_ttl_ms = 0
        self.failures = StartFailures()

    def seen(self) -> list[Process]:
        return [worker.seen for worker in self.workers.values()]


class LocalScaler:
    """Scaler that applies decisions with processes of this host.

    Args:
        knobs: The configuration.
        scaler: Source of decisions, entered.
    """

    def __init__(self, knobs: LocalKnobs, scaler: ScalerClient) -> None:
        self._knobs = knobs
        self._scaler = scaler
        self._timing = ProcessTiming(
            linger_ms=knobs.linger_ms,
            grace_ms=knobs.grace_ms,
            settle_ms=knobs.settle_ms,
            restart_backoff_ms=knobs.restart_backoff_ms,
            restart_backoff_max_ms=knobs.restart_backoff_max_ms,
            start_concurrency=knobs.start_concurrency,
        )
        # Numbers are counted by the pool's name alone: a worker's subjects do not name its model.
        numbers: dict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))
        self._pools = {
            (model.name, pool.name): _LocalPool(model.name, pool, numbers[pool.name])
            for model in knobs.models
            for pool in model.pools
        }
        gpus = installed_gpus() if knobs.gpus == "auto" else knobs.gpus
        self._host = HostResources(gpus, knobs.first_port, knobs.ports)
        self._lifetimes = Lifetimes(Path(knobs.lifetimes_file) if knobs.lifetimes_file else None)
        self._open: dict[str, ReceivedDecision] = {}
        self._reported: dict[str, dict[str, int]] = {}
        self._wake = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Apply decisions until ``stop`` is set, then stop all workers, within slightly more than ``grace_ms``."""
        stopping = asyncio.create_task(self._wake_at(stop))
        try:
            async with running(self._receive(), "decisions") as receiving:
                while not stop.is_set() and not receiving.done():
                    self._wake.clear()
                    for pool in self._pools.values():
                        self._turn(pool)
                    await self._report()
                    await wait_at_most(self._wake, _TURN_S)
        finally:
            stopping.cancel()
            await self._end_all()

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _receive(self) -> None:
        async for received in self._scaler:
            model = received.model
            unknown = [pool for pool in received.targets if (model, pool) not in self._pools]
            if unknown:
                await self._scaler.refuse(received, f"no such pool is configured: {', '.join(unknown)}")
                continue
            await self._scaler.accept(received)
            for name, target in received.targets.items():
                pool = self._pools[model, name]
                pool.target, pool.drain_ttl_ms = target, received.decision.drain_ttl_ms
            self._open[model] = received
            self._reported.pop(model, None)
            self._wake.set()
            _log.info("decision_accepted", decision=received.decision.decision_id, targets=_counts(received))

    def _mark_leaving(self, pool: _LocalPool, now_ms: int) -> None:
        """Mark the processes that are leaving."""
        model, name, is_drained = pool.model, pool.knobs.name, self._scaler.drained
        drained = {seen.worker for seen in pool.seen() if is_drained(model, name, seen.worker, seen.incarnation)}
        for seen in mark_leaving(pool.seen(), pool.target, drained, pool.drain_ttl_ms, now_ms):
            pool.workers[seen.worker].seen = seen

    def _turn(self, pool: _LocalPool) -> None:
        """Plan and execute the actions of one pool."""
        now_ms = _now_ms()
        self._mark_leaving(pool, now_ms)
        for action in plan_actions(pool.seen(), pool.target, pool.failures, self._timing, now_ms):
            self._execute(pool, action, now_ms)

    def _execute(self, pool: _LocalPool, action: ProcessAction, now_ms: int) -> None:
        if action.kind == "start":
            for _ in range(action.count):
                self._start(pool, now_ms)
            return
        worker = pool.workers[action.worker]
        worker.seen = replace(worker.seen, signal=action.kind, signalled_ms=now_ms)
        worker.end_reason = worker.end_reason or action.reason
        worker.child.send(action.kind)
        _log.info("worker_signalled", worker=action.worker, signal=action.kind, reason=worker.end_reason)

    def _start(self, pool: _LocalPool, now_ms: int) -> None:
        allotment = self._host.allocate(pool.knobs.gpus)
        if isinstance(allotment, str):
            _log.warning("worker_waits", model=pool.model, pool=pool.knobs.name, reason=allotment)
            return
        name, incarnation = f"{pool.knobs.name}-{next(pool.numbers)}", unix_ms()
        names = allotment.names() | {
            "worker": name,
            "model": pool.model,
            "pool": pool.knobs.name,
            "role": pool.knobs.role,
            "incarnation": str(incarnation),
        }
        log_path = Path(self._knobs.log_directory, f"{name}.log") if self._knobs.log_directory else None
        try:
            command, env = fill_template(pool.knobs.command, names), pool.knobs.env
            filled = dict(zip(env, fill_template(list(env.values()), names), strict=True))
            child = Child(command, filled, log_path, partial(self._exited, pool, name))
        except OSError as error:
            self._host.release(allotment)
            pool.failures = StartFailures(pool.failures.count + 1, now_ms)
            _log.error("worker_not_started", worker=name, error=str(error))
            return
        pool.workers[name] = _LocalWorker(Process(name, incarnation, now_ms), child, allotment)
        _log.info("worker_started", worker=name, model=pool.model)

    def _exited(self, pool: _LocalPool, name: str, code: int) -> None:
        now_ms = _now_ms()
        # Its drain report may have arrived since the last turn.
        self._mark_leaving(pool, now_ms)
        worker = pool.workers.pop(name)
        self._host.release(worker.allotment)
        pool.failures = failures_after_exit(pool.failures, worker.seen, self._timing, now_ms)
        reason = _exit_reason(worker, code)
        _log.info("worker_ended", worker=name, code=code, reason=reason)
        began_ms, ended_ms = worker.seen.incarnation, unix_ms()
        self._lifetimes.add(Lifetime(name, pool.model, pool.knobs.name, pool.knobs.gpus, began_ms, ended_ms, reason))
        self._wake.set()

    async def _report(self) -> None:
        """Report the progress of open decisions when their counts have changed."""
        for model, received in list(self._open.items()):
            pools = {name: self._pools[model, name] for name in received.targets}
            observed = {name: len(pool.workers) for name, pool in pools.items()}
            if all(is_reached(pool.seen(), received.targets[name]) for name, pool in pools.items()):
                del self._open[model]
                await self._scaler.complete(received, observed)
                _log.info("decision_done", decision=received.decision.decision_id, observed=observed)
            elif self._reported.get(model) != observed:
                self._reported[model] = observed
                await self._scaler.progress(received, observed)

    async def _end_all(self) -> None:
        for kind in ("terminate", "kill"):
            for pool in self._pools.values():
                for name in pool.workers:
                    self._execute(pool, ProcessAction(kind, name, reason="stopped"), _now_ms())
            deadline_s = time.monotonic() + self._knobs.grace_ms / 1_000
            while any(pool.workers for pool in self._pools.values()) and time.monotonic() < deadline_s:
                self._wake.clear()
                await wait_at_most(self._wake, _TURN_S)


def _exit_reason(worker: _LocalWorker, code: int) -> str:
    if worker.end_reason:
        return worker.end_reason
    if worker.seen.drained_ms is not None:
        return "drained"
    if worker.seen.leaving:
        return "left"
    return "failed" if code else "exited"


def _counts(received: ReceivedDecision) -> dict[str, int]:
    return {name: target.replicas for name, target in received.targets.items()}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def serve(path: Path, only: Sequence[str]) -> None:
    """Run until SIGTERM or SIGINT, for the models of a configuration or some of them.

    Raises:
        ConfigError: The configuration is invalid.
    """
    knobs = read(path)
    known = [model.name for model in knobs.models]
    unknown = sorted(set(only) - set(known))
    if unknown:
        raise ConfigError("--model", f"{path} has no model {unknown[0]}", f"Choose from {', '.join(known)}.")
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    async with ScalerClient(knobs.name, only or known, nats=knobs.nats, root=knobs.root) as scaler:
        await LocalScaler(knobs, scaler).run(stop)
