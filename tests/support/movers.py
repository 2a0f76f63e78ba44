"""Workers whose requests may move, under a real controller that does nothing else, at a time that a test moves."""

from typing import Any

from msgspec.structs import replace

from loadline.core.controller import Controller
from loadline.core.decisions.leadership import LeadershipKnobs
from loadline.core.engines.tpot import TpotSweep
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import AnyEffect, Campaign, RaiseAlarm, RenewLease, SendMigrate
from loadline.core.vocabulary.events import (
    AnyEvent,
    BusConnectionChanged,
    LeadershipWon,
    LeaseRenewed,
    LoadReported,
    MigrationAnswered,
    MigrationReported,
    RegistryRead,
    WorkerDeregistered,
    WorkerRegistered,
)
from loadline.core.vocabulary.migrations import Migration, MigrationFailure, MigrationReportPhase
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord, WorkerSample
from tests.support.belief import STALE_MS, START

POOLS = (PoolKnobs("decode", "decode"), PoolKnobs("prefill", "prefill"))
SLOTS = 1_000
"""That bind nobody."""


class Movers:
    """Model ``m``. KV cache is counted in blocks of one token, so that a block is a token.

    Args:
        knobs: What its rescheduler goes by; it is switched on.
        pools: Its pools.
        tpot: Times per output token.
        advise: It only says what it would do.
        stale_after_ms: Who is silent for so long takes nothing in.
    """

    def __init__(
        self,
        knobs: MigrationKnobs | None = None,
        pools: tuple[PoolKnobs, ...] = POOLS,
        tpot: TpotSweep | None = None,
        *,
        advise: bool = False,
        stale_after_ms: int = STALE_MS,
    ) -> None:
        self.knobs = replace(knobs or MigrationKnobs(), enabled=True)
        model = ModelKnobs("m", pools, migration=self.knobs, no_operation=advise)
        profiles = {} if tpot is None else {"m": tpot}
        self.settings = Settings(
            "agent-1",
            "all",
            (model,),
            fleet=FleetKnobs(stale_after_ms=stale_after_ms),
            leadership=LeadershipKnobs(lease_ttl_s=600),
            only_migration=True,
            tpot_profiles=profiles,
        )
        self.controller = Controller(self.settings)
        self.now = START
        self.sequence = 0
        self.records: dict[str, WorkerRecord] = {}
        self.samples: dict[str, WorkerSample] = {}
        self.alarms: list[RaiseAlarm] = []
        self.tell(BusConnectionChanged(connected=True), RegistryRead([]))

    def tell(self, *events: AnyEvent) -> list[Migration]:
        """Hand events in; gives the moves that are asked for."""
        asked: list[Migration] = []
        pending = list(events)
        while True:
            effects = self.controller.handle(pending, self.now)
            asked += [effect.migration for effect in effects if isinstance(effect, SendMigrate)]
            self.alarms += [effect for effect in effects if isinstance(effect, RaiseAlarm)]
            pending = [event for effect in effects for event in _lead(effect)]
            if not pending:
                return asked

    def worker(self, name: str, pool: str = "decode", **record: Any) -> WorkerRegistered:
        """A worker that is ready."""
        (model,) = self.settings.models
        role = next(one.role for one in model.pools if one.name == pool)
        filled = {"incarnation": 1, "block_size_tokens": 1} | record
        self.records[name] = WorkerRecord("m", pool, name, role, **filled)
        return WorkerRegistered(RegisteredWorker(self.records[name], 5))

    def said(self, name: str, **sample: Any) -> LoadReported:
        """What it reports; what is not said stays as it was before."""
        self.sequence += 1
        before = self.samples.get(name)
        if before is None:
            filled = {"kv_blocks_total": 1_000, "migration_slots_in": SLOTS, "migration_slots_out": SLOTS} | sample
            now = WorkerSample(self.sequence, 0, **filled)
        else:
            now = replace(before, sequence=self.sequence, **sample)
        self.samples[name] = now
        return LoadReported("m", self.records[name].pool, name, self.records[name].incarnation, [now])

    def join(
        self, name: str, used: int = 0, running: int = 1, *, pool: str = "decode", **sample: Any
    ) -> list[Migration]:
        """A worker comes and reports so many tokens of KV cache and so many requests."""
        return self.tell(self.worker(name, pool), self.report(name, used, running, **sample))

    def report(self, name: str, used: int, running: int, **sample: Any) -> LoadReported:
        """A report of so many tokens of KV cache and so many requests."""
        load = {"kv_blocks_used": used, "running_requests": running, "decode_tokens": used, "waiting_requests": 0}
        return self.said(name, **(load | sample))

    def leave(self, name: str) -> list[Migration]:
        """Its lease is gone."""
        return self.tell(WorkerDeregistered("m", self.records[name].pool, name))

    def wait(self, ms: int, *, silent: tuple[str, ...] = ()) -> list[Migration]:
        """Let time pass in seconds at most, at each of whose ends all but a few repeat what they said."""
        asked: list[Migration] = []
        end = self.now + ms
        while self.now < end:
            self.now = min(self.now + 1_000, end)
            asked += self.tell(*(self.said(name) for name in self.samples if name not in silent))
        return asked

    def answer(
        self, move: Migration, *, accepted: bool | None = True, requests: int = 1, **more: Any
    ) -> list[Migration]:
        """Its source answers."""
        return self.tell(MigrationAnswered(move.command_id, "m", accepted, requests=requests, **more))

    def phase(  # noqa: PLR0917 - in the order in which tests vary them
        self,
        move: Migration,
        phase: MigrationReportPhase,
        moved: int = 0,
        failed: int = 0,
        tokens: int = 0,
        reason: MigrationFailure = "",
        requests: int = 1,
    ) -> list[Migration]:
        """Its source reports."""
        report = MigrationReported(
            command_id=move.command_id,
            model="m",
            epoch=move.epoch,
            source=move.source,
            destination=move.destination,
            trigger=move.trigger,
            phase=phase,
            requests=requests,
            moved=moved,
            failed=failed,
            tokens=tokens,
            took_ms=5,
            reason=reason,
        )
        return self.tell(report)


def _lead(effect: AnyEffect) -> list[AnyEvent]:
    match effect:
        case Campaign(scope=scope, asked_at_ms=asked):
            return [LeadershipWon(scope, 7, 77, asked)]
        case RenewLease(scope=scope, lease_id=lease, asked_at_ms=asked):
            return [LeaseRenewed(scope, lease, asked)]
    return []


def pairs(moves: list[Migration]) -> list[tuple[str, str]]:
    """Source and destination of each."""
    return [(move.source.worker, move.destination.worker) for move in moves]
