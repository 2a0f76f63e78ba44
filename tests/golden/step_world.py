"""Simulated fleets whose frames and records become the input lines of the golden cases.

Workers compute prompts at a rate and decode in a batch; each step takes ``step_ms``. Prefill workers hand their
requests to decode workers. All is drawn from one seed.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

from loadline.wire.messages import DrainCommand, MigrateCommand, ScalingDecision
from tests.golden.stepping import RecordedAgent

Scaler = Literal["done", "slow", "refuses", "silent"]
BLOCK = 16
USAGE = ("kv_blocks_used", "waiting_requests", "running_requests", "queued_prefill_tokens")
LATENCY = (*USAGE, "active_prefill_tokens", "decode_tokens", "decode_batch_requests", "ttft_ms", "itl_ms", "isl_tokens")
ALL = (*LATENCY, "iteration_ms", "kv_blocks_total")


@dataclass
class Engine:
    """Performance and capacity of a worker."""

    prompt_tokens_per_s: float = 8_000.0
    iteration_ms: float = 12.0
    per_request_ms: float = 0.8
    batch: int = 16
    blocks: int = 1_200


@dataclass
class Pool:
    """A configured pool, and the start and end of its workers."""

    name: str
    role: str = "aggregated"
    engine: Engine = field(default_factory=Engine)
    workers: int = 2
    start_s: float = 12.0
    missing_workers: int = 0
    """Number of requested workers that never start."""
    record: dict[str, Any] = field(default_factory=dict)
    record_of: Callable[[int], dict[str, Any]] = lambda _: {}
    slots: int | None = None
    drain_s: float | None = None
    """Duration of a drain; None: until the worker is empty."""


@dataclass(eq=False)
class Request:
    """A request in progress."""

    isl: int
    osl: int
    prompt_left: float = 0.0
    generated: float = 0.0
    age_ms: float = 0.0

    @property
    def tokens(self) -> int:
        return int(self.isl + self.generated)


@dataclass(eq=False)
class Worker:
    """State of a worker."""

    pool: Pool
    name: str
    incarnation: int
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    drain: DrainCommand | None = None
    drains_until_ms: int = 0
    silent: bool = False
    ttft_ms: float | None = None
    sequence: int = 0

    @property
    def itl_ms(self) -> float:
        return self.pool.engine.iteration_ms + self.pool.engine.per_request_ms * len(self.running)

    @property
    def blocks(self) -> int:
        return sum(ceil(request.tokens / BLOCK) for request in self.running)


class Fleet:
    """The workers, the frontend and the scaler of one model."""

    def __init__(
        self,
        name: str,
        pools: Sequence[Pool],
        rate: Callable[[float], float],
        *,
        isl: int = 600,
        osl: int = 120,
        scaler: Scaler = "done",
        fields: Sequence[str] = USAGE,
        frontend: bool = True,
        balanced: bool = True,
    ) -> None:
        self.name, self.pools, self.rate = name, {pool.name: pool for pool in pools}, rate
        self.isl, self.osl, self.scaler, self.fields = isl, osl, scaler, fields
        self.frontend, self.balanced = frontend, balanced
        self.workers: dict[str, Worker] = {}
        self.coming: list[tuple[int, Pool]] = []
        self.held: list[Request] = []
        self.migrations: list[MigrateCommand] = []
        self.migration_end: Literal["done", "aborted", "silent"] = "done"
        self.started = 0
        self.sequence = 0


class World:
    """Runs fleets against the agent and records the lines."""

    def __init__(
        self, case: str, fleets: Sequence[Fleet], *, seed: int, step_ms: int = 2_500, start_ms: int = 0
    ) -> None:
        self.agent = RecordedAgent(case)
        self.fleets = {fleet.name: fleet for fleet in fleets}
        self.rng = random.Random(seed)
        self.step_ms, self.now_ms = step_ms, start_ms
        self.start_ms = start_ms
        self.lines: list[str] = []
        self.answers: list[str] = []
        self.items: list[dict[str, Any]] = []
        for fleet in fleets:
            for pool in fleet.pools.values():
                for _ in range(pool.workers):
                    self.start(fleet, pool)

    # -- commands ------------------------------------------------------------------------------------------------------

    def command(self, **report: Any) -> None:
        """Record a command of an operator, or a change of the configuration."""
        line = json.dumps(report)
        self.lines.append(line)
        self.agent.run(line)

    def lose(self, fleet: str, *names: str) -> None:
        """Remove workers with their requests."""
        for name in names:
            if self.fleets[fleet].workers.pop(name, None) is not None:
                self.items.append({"gone": name})

    def silence(self, fleet: str, *names: str, silent: bool = True) -> None:
        """Stop or resume the reports of workers."""
        for name, worker in self.fleets[fleet].workers.items():
            worker.silent = silent if not names or name in names else worker.silent

    def raw(self, **item: Any) -> None:
        """Write an arbitrary line."""
        self.items.append(item)

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self, seconds: float, script: dict[float, Callable[["World"], None]] | None = None) -> None:
        """Run for some seconds; call the functions of the script at their seconds from now."""
        todo = sorted((script or {}).items())
        begun_ms = self.now_ms
        while self.now_ms < begun_ms + seconds * 1_000:
            while todo and begun_ms + todo[0][0] * 1_000 <= self.now_ms:
                todo.pop(0)[1](self)
            self._step()
            self.now_ms += self.step_ms

    def _step(self) -> None:
        for fleet in self.fleets.values():
            self._come(fleet)
            self._serve(fleet)
            self._report(fleet)
        line = json.dumps({"now_ms": self.now_ms, "frames": self.items}, separators=(",", ":"))
        self.items = []
        self.lines.append(line)
        answer = self.agent.run(line)
        assert answer is not None
        self.answers.append(self.agent.recorded(answer))
        for decision in answer.decisions:
            if decision.model in self.fleets:
                self._scale(decision)
        for drain in answer.drains:
            worker = self.fleets[drain.model].workers.get(drain.worker)
            if worker is not None and worker.drain is None:
                worker.drain = drain
                worker.drains_until_ms = self.now_ms + int((worker.pool.drain_s or 0) * 1_000)
        for command in answer.migrations:
            self.fleets[command.model].migrations.append(command)

    # -- workers -------------------------------------------------------------------------------------------------------

    def start(self, fleet: Fleet, *pools: Pool) -> None:
        """Add ready workers."""
        for pool in pools:
            fleet.started += 1
            name = f"{fleet.name[:2]}-{pool.name[0]}{fleet.started}"
            worker = fleet.workers[name] = Worker(pool, name, self.now_ms + fleet.started)
            record: dict[str, Any] = {"model": fleet.name, "pool": pool.name, "worker": name, "role": pool.role}
            record |= {"incarnation": worker.incarnation, "block_size_tokens": BLOCK}
            record |= {"kv_blocks_total": pool.engine.blocks, "max_batch_requests": pool.engine.batch}
            self.items.append({"record": record | pool.record | pool.record_of(fleet.started)})

    def _come(self, fleet: Fleet) -> None:
        for due_ms, pool in list(fleet.coming):
            if due_ms <= self.now_ms:
                fleet.coming.remove((due_ms, pool))
                self.start(fleet, pool)

    def _scale(self, decision: ScalingDecision) -> None:
        fleet = self.fleets[decision.model]
        if fleet.scaler == "silent":
            return
        status = {"done": "done", "slow": "accepted", "refuses": "refused"}[fleet.scaler]
        for target in decision.targets if status != "refused" else ():
            pool = fleet.pools[target.pool]
            serving = [w for w in fleet.workers.values() if w.pool is pool and w.drain is None]
            victims = {victim.worker for victim in target.victims}
            have = len([w for w in serving if w.name not in victims]) + sum(p is pool for _, p in fleet.coming)
            for _ in range(target.replicas - have):
                if pool.missing_workers > 0:
                    pool.missing_workers -= 1
                    continue
                fleet.coming.append((self.now_ms + int(pool.start_s * self.rng.uniform(800, 1_200)), pool))
            while have > target.replicas and any(p is pool for _, p in fleet.coming):
                fleet.coming.remove(next(one for one in reversed(fleet.coming) if one[1] is pool))
                have -= 1
        ids = {key: getattr(decision, key) for key in ("decision_id", "model", "epoch", "sequence")}
        observed = {target.pool: target.replicas for target in decision.targets} if status == "done" else {}
        self._publish(f"applied.{fleet.name}", {**ids, "scaler": "toy", "status": status, "observed": observed})

    # -- requests ------------------------------------------------------------------------------------------------------

    def _serve(self, fleet: Fleet) -> None:
        arrived = [self._request(fleet) for _ in range(self._arrivals(fleet))]
        first = "prefill" if any(pool.role == "prefill" for pool in fleet.pools.values()) else "aggregated"
        fleet.held = self._place(fleet, fleet.held + arrived, first)
        finished: list[Request] = []
        handed: list[Request] = []
        for worker in list(fleet.workers.values()):
            done = self._compute(worker)
            (handed if worker.pool.role == "prefill" else finished).extend(done)
        left = self._place(fleet, handed, "decode")
        fleet.held += left
        for command in fleet.migrations:
            self._move(fleet, command)
        fleet.migrations.clear()
        for worker in list(fleet.workers.values()):
            self._leave(fleet, worker)
        self._report_traffic(fleet, arrived, finished)

    def _arrivals(self, fleet: Fleet) -> int:
        mean = fleet.rate((self.now_ms - self.start_ms) / 1_000) * self.step_ms / 1_000
        return max(0, round(self.rng.gauss(mean, mean**0.5 * 0.5))) if mean else 0

    def _request(self, fleet: Fleet) -> Request:
        isl = max(1, round(fleet.isl * self.rng.lognormvariate(0, 0.4)))
        return Request(isl, max(2, round(fleet.osl * self.rng.lognormvariate(0, 0.5))), prompt_left=float(isl))

    def _place(self, fleet: Fleet, requests: list[Request], role: str) -> list[Request]:
        workers = [w for w in fleet.workers.values() if w.pool.role == role and w.drain is None]
        if not workers:
            return requests
        for request in requests:
            able = workers if fleet.balanced else workers[: max(1, len(workers) // 2)]
            min(able, key=lambda w: (len(w.waiting) + len(w.running), w.name)).waiting.append(request)
        return []

    def _compute(self, worker: Worker) -> list[Request]:
        engine, done = worker.pool.engine, []
        prompts = engine.prompt_tokens_per_s * self.step_ms / 1_000
        while worker.waiting and len(worker.running) < engine.batch:
            request = worker.waiting[0]
            if worker.pool.role != "decode":
                used = min(prompts, request.prompt_left)
                prompts, request.prompt_left = prompts - used, request.prompt_left - used
                if request.prompt_left > 0:
                    break
                worker.ttft_ms = request.age_ms + request.isl / engine.prompt_tokens_per_s * 1_000
            if worker.pool.role == "prefill":
                done.append(worker.waiting.pop(0))
                continue
            if worker.blocks + request.tokens / BLOCK > engine.blocks:
                break
            worker.running.append(worker.waiting.pop(0))
        for request in list(worker.running):
            request.generated += self.step_ms / worker.itl_ms
            if request.generated >= request.osl:
                worker.running.remove(request)
                done.append(request)
        for request in worker.waiting:
            request.age_ms += self.step_ms
        return done

    def _leave(self, fleet: Fleet, worker: Worker) -> None:
        if worker.drain is None or worker.waiting or worker.running or self.now_ms < worker.drains_until_ms:
            return
        ids = {key: getattr(worker.drain, key) for key in ("model", "pool", "worker", "incarnation", "drain_id")}
        self._publish(f"drained.{worker.name}", ids)
        self.lose(fleet.name, worker.name)

    def _move(self, fleet: Fleet, command: MigrateCommand) -> None:
        source = fleet.workers.get(command.source.worker)
        destination = fleet.workers.get(command.destination.worker)
        if source is None or fleet.migration_end == "silent":
            return
        chosen: list[Request] = []
        tokens, most = 0, command.tokens_max if command.tokens_max is not None else 10**9
        for request in sorted([*source.running, *source.waiting], key=lambda one: one.tokens):
            enough = {"NUM_REQ": len(chosen), "TOKEN": tokens}.get(
                command.rule, tokens / BLOCK / source.pool.engine.blocks
            )
            if len(chosen) >= command.requests_max or (0 <= command.value <= enough) or tokens + request.tokens > most:
                break
            chosen.append(request)
            tokens += request.tokens
        keys = ("command_id", "model", "epoch", "trigger")
        ids = {key: getattr(command, key) for key in keys}
        for key in ("source", "destination"):
            end = getattr(command, key)
            ids[key] = {"pool": end.pool, "worker": end.worker, "incarnation": end.incarnation}
        subject = f"migration.{source.name}"
        if not chosen or destination is None or fleet.migration_end == "aborted":
            report = {
                "phase": "aborted",
                "requests": len(chosen),
                "failed": len(chosen),
                "reason": "destination_refused",
            }
            self._publish(subject, ids | report)
            return
        self._publish(subject, ids | {"phase": "admitted", "requests": len(chosen)})
        for request in chosen:
            (source.running if request in source.running else source.waiting).remove(request)
            destination.running.append(request)
        migrated = {"phase": "done", "requests": len(chosen), "moved": len(chosen), "tokens": tokens, "took_ms": 400}
        self._publish(subject, ids | migrated)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _report(self, fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            if not worker.silent:
                worker.sequence += 1
                sample = {"sequence": worker.sequence, "timestamp_ms": self.now_ms} | self._sample(fleet, worker)
                ids = {"model": fleet.name, "pool": worker.pool.name, "worker": worker.name}
                subject = f"load.{fleet.name}.{worker.pool.name}.{worker.name}"
                self._publish(subject, {**ids, "incarnation": worker.incarnation, "samples": [sample]})

    def _sample(self, fleet: Fleet, worker: Worker) -> dict[str, Any]:
        waiting, running = worker.waiting, worker.running
        found: dict[str, Any] = {
            "kv_blocks_used": min(worker.blocks, worker.pool.engine.blocks),
            "kv_blocks_total": worker.pool.engine.blocks,
            "waiting_requests": len(waiting),
            "running_requests": len(running),
            "queued_prefill_tokens": int(sum(request.prompt_left for request in waiting)),
            "active_prefill_tokens": int(waiting[0].prompt_left) if waiting else 0,
            "decode_tokens": sum(request.tokens for request in running),
            "decode_batch_requests": len(running),
            "ttft_ms": worker.ttft_ms and round(worker.ttft_ms, 1),
            "itl_ms": round(worker.itl_ms, 2) if running else None,
            "iteration_ms": round(worker.itl_ms, 2) if running else None,
            "isl_tokens": float(waiting[-1].isl) if waiting else None,
        }
        found = {key: found[key] for key in fleet.fields}
        if worker.pool.slots is not None:
            found |= {"migration_slots_in": worker.pool.slots, "migration_slots_out": worker.pool.slots}
        return {key: value for key, value in found.items() if value is not None}

    def _report_traffic(self, fleet: Fleet, arrived: list[Request], finished: list[Request]) -> None:
        if not fleet.frontend:
            return
        fleet.sequence += 1
        sample: dict[str, Any] = {"sequence": fleet.sequence, "interval_ms": self.step_ms, "arrivals": len(arrived)}
        under_way = sum(len(worker.waiting) + len(worker.running) for worker in fleet.workers.values())
        sample |= {"completed": len(finished), "queued": len(fleet.held), "in_flight": under_way}
        if arrived:
            sample["isl_tokens"] = round(sum(one.isl for one in arrived) / len(arrived), 1)
        if finished:
            sample["osl_tokens"] = round(sum(one.osl for one in finished) / len(finished), 1)
            slowest = [worker for worker in fleet.workers.values() if worker.running]
            sample["ttft_ms"] = round(200 + sum(one.age_ms for one in finished) / len(finished), 1)
            sample["itl_ms"] = round(max((worker.itl_ms for worker in slowest), default=15.0), 2)
        report = {"model": fleet.name, "frontend": "gate", "incarnation": 1, "sample": sample}
        self._publish(f"traffic.{fleet.name}.gate", report)

    def _publish(self, subject: str, payload: dict[str, Any]) -> None:
        self.items.append({"subject": f"g.v1.{subject}", "payload": payload})
