"""Reference scaler whose workers are processes of this host.

    loadline scaler local --config local.toml

``plan`` (pure) decides, a launcher runs the processes, and ``host`` gives each worker GPUs and a port. Without NATS the
scaler keeps its targets: it restarts workers that die and continues drains. With a state file its workers outlive it,
and the next scaler adopts them; without one they end with it, also when it is killed.
"""

import asyncio
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadline.adapters import logs
from loadline.adapters.daemon_thread import call_in_daemon
from loadline.client.received_decision import ReceivedDecision
from loadline.client.resources import running, wait_at_most
from loadline.client.scaler import ScalerClient
from loadline.errors import ConfigError
from loadline.scalers.local.commands import command_of, fill_template
from loadline.scalers.local.config import RESTART_RESET_MS, LocalKnobs
from loadline.scalers.local.gpu_use import GpuUse
from loadline.scalers.local.host import HostResources, installed_gpus
from loadline.scalers.local.launcher import Launch, Launcher
from loadline.scalers.local.lifetimes import Lifetime, Lifetimes, unix_ms
from loadline.scalers.local.plan import (
    Process,
    ProcessAction,
    ProcessTiming,
    StartFailures,
    failures_after_exit,
    has_recovered,
    is_reached,
    mark_leaving,
    plan_actions,
)
from loadline.scalers.local.pools import Failure, LocalPool, LocalWorker, exit_failure, pools_of
from loadline.scalers.local.state_file import SavedWorker, StateFile
from loadline.scalers.local.worker_logs import WorkerLogs

# Interval at which deadlines and drain reports are checked; decisions and exits wake the scaler at once.
_TURN_S: Final = 0.25
_NOT_SAVED: Final = "the state file cannot be written: the log of the scaler has the reason"
_log = logs.bounded("local_scaler")


class LocalScaler:
    """Scaler that applies decisions with processes of this host.

    Args:
        knobs: The configuration.
        scaler: Source of decisions, entered.
        launcher: Runs the processes.
        state_file: File of the running workers, entered; None: they end with the scaler.
    """

    def __init__(
        self, knobs: LocalKnobs, scaler: ScalerClient, launcher: Launcher, state_file: StateFile | None = None
    ) -> None:
        self._knobs = knobs
        self._scaler = scaler
        self._launcher = launcher
        self._state_file = state_file
        self._timing = ProcessTiming(
            linger_ms=knobs.linger_ms,
            grace_ms=knobs.sigterm_grace_ms,
            settle_ms=knobs.settle_ms,
            reset_ms=RESTART_RESET_MS,
            restart_backoff_ms=knobs.restart_backoff_ms,
            restart_backoff_max_ms=knobs.restart_backoff_max_ms,
            start_concurrency=knobs.start_concurrency,
        )
        # Numbers are counted by the pool's name alone: a worker's subjects do not name its model.
        self._numbers: dict[str, int] = defaultdict(lambda: 1)
        self._pools = pools_of(knobs)
        gpus = installed_gpus() if knobs.gpus == "auto" else knobs.gpus
        self._host = HostResources(gpus, knobs.first_port, knobs.ports)
        self._gpu_use = GpuUse() if gpus and knobs.avoid_used_gpus else None
        self._lifetimes = Lifetimes(Path(knobs.lifetimes_file) if knobs.lifetimes_file else None)
        self._logs = WorkerLogs(Path(knobs.log_directory)) if knobs.log_directory else None
        self._current: dict[str, ReceivedDecision] = {}
        self._reported: dict[str, tuple[bool, dict[str, int], str]] = {}
        """Last report of each model: True if its decision is done, its existing workers by pool, and the reasons."""
        self._wake = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Apply decisions until ``stop`` is set; then end all workers, within slightly more than ``grace_ms``.

        With ``on_stop = "leave"`` they run on; with a state file also if the scaler crashes.

        Raises:
            ConfigError: The state file cannot be used, or lists a running worker of a pool that is not configured.
        """
        if self._state_file is not None:
            await self._adopt(self._state_file)
        stopping = asyncio.create_task(self._wake_at(stop))
        try:
            async with running(self._receive(), "decisions") as receiving:
                while not stop.is_set() and not receiving.done():
                    self._wake.clear()
                    await self._turn()
                    await self._report()
                    await wait_at_most(self._wake, _TURN_S)
        finally:
            stopping.cancel()
            try:
                # A crash is no request to end the engines: the next scaler finds them by the state file.
                if self._state_file is None or (stop.is_set() and self._knobs.on_stop == "end"):
                    await self._end_all()
            finally:
                self._save()

    async def _adopt(self, state_file: StateFile) -> None:
        """Take over the workers of an earlier scaler that still run."""
        saved = state_file.read()
        self._numbers.update(saved.numbers)
        await self._launcher.discard_unreleased()
        for one in saved.workers:
            await self._adopt_worker(one)
        for (model, name), pool in self._pools.items():
            self._scaler.record_existing(model, name, sum(not process.leaving for process in pool.seen()))

    async def _adopt_worker(self, saved: SavedWorker) -> None:
        name, pool = saved.process.worker, self._pools.get((saved.model, saved.pool))
        on_exit = partial(self._exited, pool, name) if pool else _ignore_exit
        process = await self._launcher.adopt(name, saved.identity, on_exit)
        if process is None:
            _log.info("worker_ended_meanwhile", worker=name, model=saved.model)
            reason = saved.end_reason or ("drained" if saved.process.drained_ms is not None else "exited")
            self._add_lifetime(saved.model, saved.pool, saved.process, saved.gpus, reason)
            return
        if pool is None:
            problem = f"{name} of the pool {saved.pool} of {saved.model} runs, and this pool is not configured"
            raise ConfigError("models", problem, "Configure it until it is scaled to 0, or end the process.")
        pool.workers[name] = LocalWorker(saved.process, process, saved.allotment, saved.gpus, saved.end_reason)
        self._host.adopt(saved.allotment)
        if saved.identity is None and saved.process.signal != "none":
            # It was not found yet, so the signal may never have been sent.
            process.send(saved.process.signal)
        _log.info("worker_adopted", worker=name, model=saved.model)

    def _save(self) -> bool:
        """Write the state file; return False if it cannot be written."""
        if self._state_file is None:
            return True
        try:
            self._state_file.write(dict(self._numbers), [one for pool in self._pools.values() for one in pool.saved()])
        except OSError as error:
            _log.error("state_not_written", detail=str(error), remedy="No worker is started until it can be written.")
            return False
        return True

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
            self._current[model] = received
            self._reported.pop(model, None)
            self._wake.set()
            _log.info("decision_accepted", decision=received.decision.decision_id, targets=_counts(received))

    def _mark_leaving(self, pool: LocalPool, now_ms: int) -> None:
        """Mark the processes that are leaving."""
        model, name, is_drained = pool.model, pool.knobs.name, self._scaler.drained
        drained = {seen.worker for seen in pool.seen() if is_drained(model, name, seen.worker, seen.incarnation)}
        for seen in mark_leaving(pool.seen(), pool.target, drained, pool.drain_ttl_ms, now_ms):
            pool.workers[seen.worker].seen = seen

    async def _turn(self) -> None:
        """Plan and execute the actions of all pools."""
        unready = []
        for pool in self._pools.values():
            self._mark_leaving(pool, _now_ms())
            unready.append(await pool.unready_surplus())
        now_ms, starting = _now_ms(), list[LocalPool]()
        for pool, unready_here in zip(self._pools.values(), unready, strict=True):
            self._mark_leaving(pool, now_ms)  # again: a decision may have come meanwhile
            pool.waits = ""
            if pool.failure and has_recovered(pool.seen(), pool.target, pool.failure.lived_ms, self._timing, now_ms):
                pool.failure = None
            planned = plan_actions(pool.seen(), pool.target, pool.failures, self._timing, now_ms, unready=unready_here)
            for action in planned:
                if action.kind == "start":
                    starting += [pool] * action.count
                else:
                    self._signal(pool, action, now_ms)
        if starting:
            await self._start(starting)
        self._save()
        if self._logs is not None:
            # In a thread: copies of eight logs took 0.3 s, in which no report of a drain was read.
            await call_in_daemon(partial(self._logs.bound, self._running()))

    def _running(self) -> set[str]:
        """Return the names of the workers that run."""
        return {worker for pool in self._pools.values() for worker in pool.workers}

    def _signal(self, pool: LocalPool, action: ProcessAction, now_ms: int) -> None:
        if action.kind == "start":
            return
        worker = pool.workers[action.worker]
        worker.seen = replace(worker.seen, signal=action.kind, signalled_ms=now_ms)
        worker.end_reason = worker.end_reason or action.reason
        worker.process.send(action.kind)
        _log.info("worker_signalled", worker=action.worker, signal=action.kind, reason=worker.end_reason)

    async def _start(self, pools: list[LocalPool]) -> None:
        """Start a worker of each of these pools: none runs before the state file lists it."""
        if not self._save():
            for pool in pools:
                pool.waits = _NOT_SAVED
            return
        if self._gpu_use is not None:
            await self._gpu_use.refresh()
        created = [(pool, worker) for pool in pools if (worker := await self._create(pool)) is not None]
        if not created:
            return
        saved = self._save()
        for pool, worker in created:
            if not saved:
                pool.waits = _NOT_SAVED
                self._signal(pool, ProcessAction("kill", worker.seen.worker, reason="not saved"), _now_ms())
                continue
            await worker.process.release()
            _log.info("worker_started", worker=worker.seen.worker, model=pool.model)

    async def _create(self, pool: LocalPool) -> LocalWorker | None:
        """Create a worker, and return it unless something is missing."""
        allotment = self._host.allocate(pool.knobs.gpus, self._gpu_use.used if self._gpu_use else {})
        if isinstance(allotment, str):
            pool.waits = allotment
            if allotment != pool.logged_wait:  # it is tried four times a second
                pool.logged_wait = allotment
                _log.warning("worker_waits", model=pool.model, pool=pool.knobs.name, reason=allotment)
            return None
        pool.logged_wait = ""
        number, now_ms, incarnation = self._numbers[pool.knobs.name], _now_ms(), unix_ms()
        self._numbers[pool.knobs.name] += 1
        name = f"{pool.knobs.name}-{number}"
        names = allotment.names() | {
            "worker": name,
            "name": name,
            "model": pool.model,
            "pool": pool.knobs.name,
            "role": pool.knobs.role,
            "incarnation": str(incarnation),
        }
        env = pool.knobs.env
        launch = Launch(
            name,
            fill_template(command_of(self._knobs, pool.knobs), names),
            dict(zip(env, fill_template(list(env.values()), names), strict=True)),
            self._logs.path_of(name) if self._logs else None,
        )
        if self._logs is not None:
            self._logs.prune(pool.knobs.name, self._running())
        try:
            process = await self._launcher.create(launch, partial(self._exited, pool, name))
        except OSError as error:
            self._host.release(allotment)
            pool.failures = StartFailures(pool.failures.count + 1, now_ms)
            pool.failure = Failure(f"{name} cannot be started: {error}")
            _log.error("worker_not_started", worker=name, detail=str(error))
            return None
        pool.workers[name] = LocalWorker(Process(name, incarnation, now_ms), process, allotment, pool.knobs.gpus)
        return pool.workers[name]

    def _exited(self, pool: LocalPool, name: str, code: int | None) -> None:
        now_ms = _now_ms()
        # Its drain report may have arrived since the last turn.
        self._mark_leaving(pool, now_ms)
        worker = pool.workers.pop(name)
        self._host.release(worker.allotment)
        pool.failures = failures_after_exit(pool.failures, worker.seen, self._timing, now_ms)
        if not worker.seen.leaving:
            log_path = self._logs.path_of(name) if self._logs else None
            pool.failure = exit_failure(name, code, now_ms - worker.seen.started_ms, log_path)
        reason = worker.exit_reason(code)
        _log.info("worker_ended", worker=name, code=code, reason=reason)
        self._add_lifetime(pool.model, pool.knobs.name, worker.seen, worker.gpus, reason)
        self._wake.set()

    def _add_lifetime(self, model: str, pool: str, process: Process, gpus: int, reason: str) -> None:
        self._lifetimes.add(Lifetime(process.worker, model, pool, gpus, process.incarnation, unix_ms(), reason))

    async def _report(self) -> None:
        """Report decisions whose counts or reasons have changed; also after they are done, for the leader's status."""
        for model, received in list(self._current.items()):
            pools = {name: self._pools[model, name] for name in received.targets}
            before = self._reported.get(model)
            was_done = before is not None and before[0]
            done = was_done or all(is_reached(pool.seen(), received.targets[name]) for name, pool in pools.items())
            observed = _counts(received) if done else {name: len(pool.workers) for name, pool in pools.items()}
            detail = "; ".join(f"{name}: {pool.detail}" for name, pool in pools.items() if pool.detail)
            if before == (done, observed, detail):
                continue
            self._reported[model] = done, observed, detail
            if not done:
                await self._scaler.progress(received, observed, detail)
                continue
            await self._scaler.complete(received, observed, detail=detail)
            if not was_done:
                _log.info("decision_done", decision=received.decision.decision_id, observed=observed)

    async def _end_all(self) -> None:
        for kind in ("terminate", "kill"):
            for pool in self._pools.values():
                for name in pool.workers:
                    self._signal(pool, ProcessAction(kind, name, reason="stopped"), _now_ms())
            deadline_s = time.monotonic() + self._timing.grace_ms / 1_000
            while any(pool.workers for pool in self._pools.values()) and time.monotonic() < deadline_s:
                self._wake.clear()
                await wait_at_most(self._wake, _TURN_S)


def _counts(received: ReceivedDecision) -> dict[str, int]:
    return {name: target.replicas for name, target in received.targets.items()}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _ignore_exit(_code: int | None) -> None:
    """Ignore the end of a process that is not adopted."""
