"""Fleets whose messages are well-formed and extreme: ``python -m tests.fuzz.extreme_fleets FIRST:LAST`` plays seeds.

For each seed there is a world for every planner, shape of a fleet and kind of profile. Allocation policies, solvers,
migration policies and load metrics take turns over the worlds. Messages pass the production codec; the limits of memory
and CPU time end the process if an array or a loop is as large as a message claims.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from math import isfinite
from typing import Any, Final, NoReturn

import msgspec

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.queries import status as query
from loadline.core.rounds.migration import MigrationPipeline
from loadline.core.rounds.scaling.context import ScalingContext
from loadline.core.vocabulary.allocations import AllocationProblem
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision
from loadline.core.vocabulary.events import AnyEvent
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord, WorkerSample
from loadline.runtime.journal_records import EffectsRecord, encode
from loadline.sim.step import Stepper
from loadline.sim.world.fitter import InlineFitter
from loadline.wire.messages import (
    DecisionApplied,
    DrainCommand,
    DrainReport,
    LoadReport,
    MigrateCommand,
    MigrationReport,
    ScalingDecision,
    TrafficReport,
)
from loadline.wire.steps import StepInput, StepItem, StepOutput
from loadline.wire.subjects import Subjects
from tests.fuzz.extreme_settings import FAILING, WorldKind, settings_of, worlds
from tests.fuzz.limits import limit_resources
from tests.support.extremes import Extremes

STEPS: Final = 30
STEP_MS: Final = (0, 1, 250, 1_000, 1_000, 1_000, 1_000, 5_000, 20_000)
STARTS_MS: Final = (0, 1, 1_700_000_000_000, 2**53 - 100_000_000)
WORKERS_MOST: Final = 6
COMMITS_MAX: Final = 2
"""Maximum decisions of a model with the same counts at one time; more are a loop."""
SUBJECTS: Final = Subjects("x")
ALLOWANCE_MB: Final = 256
CPU_S: Final = 300
SHARES: Final = (0.05, 0.3, 0.9)


def play(kind: WorldKind, counts: Counter[str]) -> None:
    """Play one world.

    Raises:
        Exception: The agent raised it; a note names the world.
    """
    try:
        ExtremeWorld(kind, counts).run()
    except BaseException as error:
        error.add_note(f"in {kind}")
        raise


class ExtremeWorld:
    """Two models that share GPUs, their workers, frontends and scalers, all of which report extremes."""

    def __init__(self, kind: WorldKind, counts: Counter[str]) -> None:
        self.counts = counts
        self.rng = rng = random.Random(repr(kind))
        self.extremes = Extremes(rng, rng.choice(SHARES))
        self.now_ms = rng.choice(STARTS_MS)
        self.settings = settings_of(kind, rng)
        self.agent = Stepper(self.settings, root="x")
        if kind.solver == FAILING:
            self.agent._turns._effects._fitter = FailingSolver()
        self._check_effects()
        self.names, self.sequences = count(), count(1)
        self.workers: dict[str, WorkerRecord] = {}
        self.commits: Counter[tuple[object, ...]] = Counter()

    def run(self) -> None:
        """Run all steps, then read the agent's status, explanations, snapshot and learned parameters."""
        frames = [self._record(knobs.name, pool) for knobs in self.settings.models for pool in knobs.pools]
        for _ in range(STEPS):
            frames += self._frames()
            output = self.agent.step(StepInput(self.now_ms, frames))
            self.counts["frames"] += len(frames)
            self.counts["rejected"] += sum(bool(one.subject) for one in output.rejected)
            check_finite(output)
            self.counts.update(reason.code for hold in output.holds for reason in hold.reasons)
            frames = list(self._answers(output))
            self.now_ms += self.rng.choice(STEP_MS)
        controller = self.agent.controller
        check_finite(query.status(controller.settings, controller.state, "fuzz", 0, self.now_ms))
        check_finite(query.explain(controller.state, "", ""))
        check_finite(query.explain_migrations(controller.state, "", ""))
        before = controller.snapshot()
        controller.restore(before)
        assert controller.snapshot() == before, "a replay that begins here would differ, if only by 0 and 0.0"
        for planner in controller._planners.values():
            learned = planner.export_learned()
            if learned is not None:
                planner.import_learned(learned)
                self.counts["learned"] += 1

    def _check_effects(self) -> None:
        handle = self.agent.controller.handle

        def checked(events: Sequence[AnyEvent], now: int) -> list[AnyEffect]:
            effects = handle(events, now)
            encode(EffectsRecord(effects))
            check_finite(effects)
            self._check_commits(effects, now)
            self.counts.update(type(effect).__name__ for effect in effects)
            return effects

        self.agent.controller.handle = checked  # type: ignore[method-assign]  # sees every turn of the agent

    def _check_commits(self, effects: Sequence[AnyEffect], now: int) -> None:
        """Check that no model repeats the same decision in every turn."""
        for effect in effects:
            if type(effect) is CommitDecision:
                decision = effect.decision
                made = decision.model, now, tuple(target.replicas for target in decision.targets)
                self.commits[made] += 1
                assert self.commits[made] <= COMMITS_MAX, decision

    def _frames(self) -> Iterator[StepItem]:
        """Yield the messages of workers and frontends in a step."""
        for knobs in self.settings.models:
            for pool in knobs.pools:
                if self.rng.random() < 0.1:
                    yield self._record(knobs.name, pool)
            for frontend in ("fe-1", "fe-2"):
                if self.rng.random() < 0.9:
                    yield self._traffic(knobs.name, frontend)
        for name in list(self.workers):
            if self.rng.random() < 0.02:
                yield self._gone(name)
            elif self.rng.random() < 0.7:
                yield self._load(self.workers[name])

    def _record(self, model: str, pool: PoolKnobs) -> StepItem:
        """Register a worker, or another incarnation of one."""
        mine = [name for name, one in self.workers.items() if (one.model, one.pool) == (model, pool.name)]
        again = len(mine) >= WORKERS_MOST or (mine and self.rng.random() < 0.3)
        name = self.rng.choice(mine) if again else f"w{next(self.names)}"
        fixed = {"model": model, "pool": pool.name, "worker": name, "role": pool.role}
        ranks, state = self.rng.choice([1, 1, 2, 1_024]), self.rng.choice(["starting", "ready", "ready", "draining"])
        known = {"incarnation": next(self.sequences), "data_parallel_size": ranks, "state": state}
        found = self.extremes.fields(WorkerRecord, **fixed, **known)
        self.workers[name] = msgspec.convert(found, WorkerRecord)
        return StepItem(record=msgspec.Raw(msgspec.json.encode(found)))

    def _gone(self, name: str) -> StepItem:
        del self.workers[name]
        return StepItem(gone=name)

    def _load(self, worker: WorkerRecord) -> StepItem:
        samples: list[dict[str, Any]] = []
        for _ in range(self.rng.choice([1, 1, 3])):
            sample = self.extremes.fields(WorkerSample, sequence=next(self.sequences))
            sample["rank"] = self.rng.choice([0, worker.data_parallel_size - 1])
            used, total = sample.get("kv_blocks_used"), sample.get("kv_blocks_total")
            if used is not None and total is not None:
                sample["kv_blocks_used"] = min(used, total)
            samples.append(sample)
        names = {"model": worker.model, "pool": worker.pool, "worker": worker.worker}
        said = self.extremes.fields(LoadReport, **names, incarnation=worker.incarnation, samples=samples)
        return _frame(SUBJECTS.load(*worker.names), said)

    def _traffic(self, model: str, frontend: str) -> StepItem:
        sample = self.extremes.fields(TrafficSample, sequence=next(self.sequences))
        for name in ("ttft_met", "itl_met", "both_met"):
            if name in sample:
                sample[name] = min(sample[name], sample.get("completed", 0))
        said = {"model": model, "frontend": frontend, "incarnation": 1, "sample": sample}
        return _frame(SUBJECTS.traffic(model, frontend), self.extremes.fields(TrafficReport, **said))

    def _answers(self, output: StepOutput) -> Iterator[StepItem]:
        """Yield the answers of scalers and workers to the agent's decisions and commands."""
        for decision in output.decisions:
            if self.rng.random() < 0.8:
                yield self._applied(decision)
        for migration in output.migrations:
            yield self._migrated(migration)
        for drain in output.drains:
            if drain.worker in self.workers and self.rng.random() < 0.5:
                yield self._drained(drain)
                yield self._gone(drain.worker)

    def _applied(self, decision: ScalingDecision) -> StepItem:
        observed = {target.pool: self.extremes.value(_count()) for target in decision.targets}
        names = {"decision_id": decision.decision_id, "model": decision.model, "scaler": "s", "observed": observed}
        ordered = {"epoch": decision.epoch, "sequence": decision.sequence}
        said = self.extremes.fields(DecisionApplied, **names, **ordered)
        return _frame(SUBJECTS.applied(decision.model), said)

    def _migrated(self, command: MigrateCommand) -> StepItem:
        shared = ("command_id", "model", "epoch", "source", "destination", "trigger")
        names = {name: msgspec.to_builtins(getattr(command, name)) for name in shared}
        said = self.extremes.fields(MigrationReport, **names)
        said["moved"] = min(said.get("moved", 0), said["requests"])
        said["failed"] = min(said.get("failed", 0), said["requests"] - said["moved"])
        return _frame(SUBJECTS.migration(command.model, command.source.pool, command.source.worker), said)

    def _drained(self, command: DrainCommand) -> StepItem:
        names = {"model": command.model, "pool": command.pool, "worker": command.worker}
        said = self.extremes.fields(DrainReport, **names, incarnation=command.incarnation, drain_id=command.drain_id)
        return _frame(SUBJECTS.drained(command.model, command.pool, command.worker), said)


class FailingSolver(InlineFitter):
    """Fitter whose exact solver never answers in time."""

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> None:
        del problem, time_limit_s


def _frame(subject: str, said: dict[str, Any]) -> StepItem:
    return StepItem(subject=subject, payload=msgspec.Raw(msgspec.json.encode(said)))


@cache
def _count() -> Any:
    """Return the type of a count without an upper bound of its own."""
    return msgspec.inspect.type_info(int)


def check_finite(found: object) -> None:
    """Check all numbers in a value, however nested.

    Raises:
        AssertionError: One is infinite or no number.
    """
    todo = [("", msgspec.to_builtins(found))]
    while todo:
        place, value = todo.pop()
        match value:
            case dict():
                todo += [(f"{place}.{key}", one) for key, one in value.items()]
            case list() | tuple():
                todo += [(f"{place}[{number}]", one) for number, one in enumerate(value)]
            case float():
                assert isfinite(value), f"{place} is {value}"


def uncover_faults() -> None:
    """Raise exceptions that the agent would contain in one model."""

    def fail(_self: ScalingContext, _model: object, fault: Exception, _now: int) -> NoReturn:
        raise fault

    ScalingContext.fail = fail  # type: ignore[assignment, method-assign]
    MigrationPipeline._plan_safely = MigrationPipeline._plan_model  # type: ignore[method-assign]


def main() -> None:
    """Play the seeds of the command line; print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("seeds", help="FIRST:LAST, the last one excluded")
    parser.add_argument("--cpu-s", type=int, default=CPU_S, help="limit of CPU time")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    counts: Counter[str] = Counter()
    uncover_faults()
    for kind in list(worlds(-1))[::5]:
        play(kind, counts)  # imports and caches do not depend on the messages
    counts.clear()
    limit_resources(ALLOWANCE_MB, options.cpu_s)
    for seed in range(first, last):
        for kind in worlds(seed):
            play(kind, counts)
            counts.update({"worlds": 1})
    sys.stdout.write(msgspec.json.encode(counts).decode() + "\n")


if __name__ == "__main__":
    main()
