"""Checks of a fleet while faults happen."""

import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.file_journal import read_segments
from loadline.core.vocabulary.decisions import Decision
from loadline.demo.account import DemoSummary
from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.runtime import journal_records
from loadline.sim.chaos.committed_decisions import CommittedDecisions, unknown_shrinks
from loadline.sim.chaos.invariants import INVARIANTS
from loadline.wire.codec import decode_decision, decode_epoch
from loadline.wire.keys import LEADER_SCOPE_ALL
from tools.process_chaos.fleet import LEASE_TTL_S, ChaosFleet

TAKEOVER_S: Final = LEASE_TTL_S + 2.0
"""Time limit of a takeover while nothing else fails."""
HANDOVER_S: Final = 1.0
"""Time limit of a takeover from a leader that was told to stop."""


class Observer:
    """Observer of decisions and leaders in etcd.

    Args:
        fleet: The fleet that it observes.
    """

    def __init__(self, fleet: ChaosFleet) -> None:
        self._fleet = fleet
        self.leader_key = fleet.keys.leader(LEADER_SCOPE_ALL)
        self.last_leader = "agent-1"
        self.leads = False
        self.takeovers: list[tuple[float, str]] = []
        """Times at which an agent began to lead (monotonic, s), and its name."""
        self.violations: list[str] = []
        self.committed = CommittedDecisions(lambda name, detail: self.violations.append(_violation(name, detail)))
        self.killed: set[str] = set()
        """Workers that a fault has killed."""
        self._epoch_key = fleet.keys.epoch(LEADER_SCOPE_ALL)
        self._epoch: int | None = None
        """Epoch of the newest term; None: not known, as before the first one that keeps it in a key."""
        self._terms: dict[str, int] = {}

    async def run(self, store: EtcdStore) -> None:
        """Follow all keys until cancelled."""
        await store.follow(self._fleet.keys.prefix, self._on_snapshot, self._on_changes, lambda _connected: None)

    def _on_snapshot(self, snapshot: StoreSnapshot) -> None:
        self.leads, self._epoch = any(entry.key == self.leader_key for entry in snapshot.entries), None
        for entry in snapshot.entries:
            self._observe(entry, None)  # nobody saw under which leader it was written

    def _on_changes(self, changes: list[StoreChange]) -> None:
        for change in changes:
            if change.entry is not None:
                self._observe(change.entry, self._epoch if self.leads else 0)
            elif change.key == self.leader_key:
                self.leads = False

    def _observe(self, entry: StoreEntry, leader_epoch: int | None) -> None:
        if entry.key == self.leader_key:
            self._observe_leader(entry)
        elif entry.key == self._epoch_key:
            self._epoch = decode_epoch(entry.value)
        elif entry.key.startswith(self._fleet.keys.decisions):
            found = decode_decision(entry.value)
            if not isinstance(found, Decision):
                self.violations.append(f"a decision in etcd cannot be read: {found.detail}")
            elif found.decision_id not in self.committed.by_id:  # etcd may have returned to a snapshot with it
                self.committed.add(found, leader_epoch)

    def _observe_leader(self, entry: StoreEntry) -> None:
        name = entry.value.decode()
        if self._terms.get(name) != entry.lease_id:  # an etcd that was wiped counts revisions from 1 again
            self._terms[name] = entry.lease_id
            self.takeovers.append((time.monotonic(), name))
        self.last_leader, self.leads = name, True


def journal_problems(fleet: ChaosFleet) -> Iterator[str]:
    """Yield the differences between the journals and their replays."""
    for name in fleet.clocks:
        folder = fleet.directory / "journal" / name
        result = journal_records.replay((str(segment), records) for segment, records in read_segments(folder))
        if result.difference:
            yield f"the journal of {name}: {result.difference}"
        if not result.turns:
            yield f"the journal of {name} has no turn"
    if fleet.other is not None:
        for folder in sorted(fleet.directory.glob("journal/*-other")):
            if problem := fleet.other.replay(folder):
                yield f"the journal {folder.name}: {problem}"


def worker_problems(fleet: ChaosFleet, before_s: float) -> Iterator[str]:
    """Yield the workers that were ended before they were empty, until a Unix time in s.

    No router sends a worker requests that etcd has never had, and no decision can name it.
    """
    for log in sorted((fleet.directory / "workers").glob("*.log")):
        left = _last(log, "leaves") if _last(log, "registered") else {}
        if left and _unix_s(left) < before_s and not (left["drained"] and left["held"] == 0):
            yield f"{log.stem} left with {left['held']} requests, drained: {left['drained']}"


def scaler_problems(fleet: ChaosFleet, decisions: Mapping[str, Decision]) -> Iterator[str]:
    """Yield the workers that the scaler has ended for a new leader which did not know them."""
    in_force: dict[str, Decision] = {}
    unknown: dict[str, str] = {}  # by pool: no two models of the fleet have pools of the same name
    for record in _records(fleet.directory / "scaler.log"):
        decision = decisions.get(str(record.get("decision"))) if record["event"] == "decision_accepted" else None
        if decision is not None:
            before, in_force[decision.model] = in_force.get(decision.model, decision), decision
            for target in decision.targets:
                unknown.pop(target.pool, None)
            unknown |= unknown_shrinks(before, decision)
        pool = str(record.get("worker")).rpartition("-")[0]
        if record["event"] == "worker_signalled" and record["reason"] == "surplus" and pool in unknown:
            yield _violation("I16-known", f"{record['worker']} of {pool}, {unknown[pool]}")


def request_problems(fleet: ChaosFleet) -> Iterator[str]:
    """Yield what is wrong with the gateway's account."""
    if not fleet.setup.summary_file.exists():
        yield f"the gateway did not end: {fleet.directory / 'gateway.log'}"
        return
    summary = read_summary(fleet)
    if summary.lost or summary.finished != summary.arrived:
        yield f"of {summary.arrived} requests {summary.finished} are finished, {summary.lost} lost"


def read_summary(fleet: ChaosFleet) -> DemoSummary:
    """Return the gateway's account."""
    return msgspec.json.decode(fleet.setup.summary_file.read_bytes(), type=DemoSummary)


def _violation(name: str, detail: str) -> str:
    return f"{name}: {INVARIANTS[name]}. {detail}"


def _records(log: Path) -> Iterator[dict[str, object]]:
    """Yield the records of a log with an event; other lines are those of a crash."""
    for line in log.read_text(encoding="utf-8").splitlines():
        if '"event": ' in line:
            yield json.loads(line)


def _last(log: Path, event: str) -> dict[str, object]:
    """Return the last record of an event in a log; empty if there is none."""
    return max((record for record in _records(log) if record["event"] == event), key=_unix_s, default={})


def _unix_s(record: dict[str, object]) -> float:
    return datetime.fromisoformat(str(record["timestamp"])).timestamp()
