"""A model whose requests migrate under a real controller, in virtual time."""

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
from tests.support.fleet_harness import STALE_MS, START

POOLS = (PoolKnobs("decode", "decode"), PoolKnobs("prefill", "prefill"))
SLOTS = 1_000
"""Number of slots that never limits."""


class MigrationWorld:
    """Model ``m``. KV cache is counted in blocks of one token, so that a block is a token.

    Args:
        knobs: Settings of migration, which is enabled.
        pools: Its pools.
        tpot: Times per output token.
        advise: True to explain migrations without commanding them.
        stale_after_ms: Silence after which a worker receives no requests.
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
        self.handle(BusConnectionChanged(connected=True), RegistryRead([]))

    def handle(self, *events: AnyEvent) -> list[Migration]:
        """Handle events and return the migrate commands."""
        commanded: list[Migration] = []
        pending = list(events)
        while True:
            effects = self.controller.handle(pending, self.now)
            commanded += [effect.migration for effect in effects if isinstance(effect, SendMigrate)]
            self.alarms += [effect for effect in effects if isinstance(effect, RaiseAlarm)]
            pending = [event for effect in effects for event in _answer_store(effect)]
            if not pending:
                return commanded

    def worker(self, name: str, pool: str = "decode", **record: Any) -> WorkerRegistered:
        """Return the registration of a ready worker."""
        (model,) = self.settings.models
        role = next(one.role for one in model.pools if one.name == pool)
        fields = {"incarnation": 1, "block_size_tokens": 1} | record
        self.records[name] = WorkerRecord("m", pool, name, role, **fields)
        return WorkerRegistered(RegisteredWorker(self.records[name], 5))

    def load_report(self, name: str, **sample: Any) -> LoadReported:
        """Return a report; fields that are not given stay as they were."""
        self.sequence += 1
        before = self.samples.get(name)
        if before is None:
            fields = {"kv_blocks_total": 1_000, "migration_slots_in": SLOTS, "migration_slots_out": SLOTS} | sample
            newest = WorkerSample(self.sequence, 0, **fields)
        else:
            newest = replace(before, sequence=self.sequence, **sample)
        self.samples[name] = newest
        return LoadReported("m", self.records[name].pool, name, self.records[name].incarnation, [newest])

    def join(
        self, name: str, used: int = 0, running: int = 1, *, pool: str = "decode", **sample: Any
    ) -> list[Migration]:
        """Register a worker and report its tokens of KV cache and its requests."""
        return self.handle(self.worker(name, pool), self.report(name, used, running, **sample))

    def report(self, name: str, used: int, running: int, **sample: Any) -> LoadReported:
        """Return a report of tokens of KV cache and requests."""
        load = {"kv_blocks_used": used, "running_requests": running, "decode_tokens": used, "waiting_requests": 0}
        return self.load_report(name, **(load | sample))

    def deregister(self, name: str) -> list[Migration]:
        """Remove the lease of a worker."""
        return self.handle(WorkerDeregistered("m", self.records[name].pool, name))

    def advance(self, ms: int, *, silent: tuple[str, ...] = ()) -> list[Migration]:
        """Advance the time in steps of at most 1 s, after each of which all but silent workers repeat their report."""
        commanded: list[Migration] = []
        end = self.now + ms
        while self.now < end:
            self.now = min(self.now + 1_000, end)
            commanded += self.handle(*(self.load_report(name) for name in self.samples if name not in silent))
        return commanded

    def answer(
        self, command: Migration, *, accepted: bool | None = True, requests: int = 1, **more: Any
    ) -> list[Migration]:
        """Let the source answer a command."""
        return self.handle(MigrationAnswered(command.command_id, "m", accepted, requests=requests, **more))

    def report_phase(  # noqa: PLR0917 - in the order in which tests vary them
        self,
        command: Migration,
        phase: MigrationReportPhase,
        moved: int = 0,
        failed: int = 0,
        tokens: int = 0,
        reason: MigrationFailure = "",
        requests: int = 1,
    ) -> list[Migration]:
        """Let the source report a phase."""
        report = MigrationReported(
            command_id=command.command_id,
            model="m",
            epoch=command.epoch,
            source=command.source,
            destination=command.destination,
            trigger=command.trigger,
            phase=phase,
            requests=requests,
            moved=moved,
            failed=failed,
            tokens=tokens,
            took_ms=5,
            reason=reason,
        )
        return self.handle(report)


def _answer_store(effect: AnyEffect) -> list[AnyEvent]:
    match effect:
        case Campaign(scope=scope, requested_at_ms=requested_ms):
            return [LeadershipWon(scope, 7, 77, requested_ms, 7)]
        case RenewLease(scope=scope, lease_id=lease, requested_at_ms=requested_ms):
            return [LeaseRenewed(scope, lease, requested_ms)]
    return []


def pairs(commands: list[Migration]) -> list[tuple[str, str]]:
    """Return source and destination of each command."""
    return [(command.source.worker, command.destination.worker) for command in commands]
