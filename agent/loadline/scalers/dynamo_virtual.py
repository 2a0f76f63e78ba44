"""Scaler that hands decisions to Dynamo's ``VirtualConnectorClient``, in place of Dynamo's planner.

    loadline scaler dynamo-virtual --config dynamo.toml

The client runs in the environment that starts and stops the workers of a Dynamo deployment. A decision is announced to
it in one etcd transaction, when it has acknowledged the one before, and is done when it is acknowledged. The keys name
no workers, so the environment selects those to remove: the rule is ``unknown``.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadline.adapters import logs, signals
from loadline.client.received_decision import ReceivedDecision
from loadline.client.resources import running, store_of, wait_at_most, wait_until_stopped
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import VictimRule
from loadline.errors import OutcomeUnknown, StoreDenied, StoreUnavailable
from loadline.ports import Compare, Store, StoreChange, StoreEntry, StoreSnapshot, Write
from loadline.scalers.config_file import selected_models
from loadline.scalers.dynamo_keys import (
    COUNT_OF_ROLE,
    DECODE,
    PREFILL,
    ConnectorState,
    Counts,
    announcement,
    next_step,
    prefix_of,
    read_state,
    repetition,
)
from loadline.scalers.dynamo_virtual_config import ConnectorModelKnobs, DynamoVirtualKnobs, read

# Interval at which Dynamo's planner looks for an acknowledgement.
_REPEAT_S: Final = 10.0
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0
_log = logs.bounded("dynamo_virtual_scaler")


class _Connector:
    """Keys of one Dynamo namespace, and the decision for it.

    Args:
        knobs: Model and namespace.
        scaler: Receiver of the answers.
        store: Dynamo's etcd.
        timeout_s: Time for acknowledging a decision.
    """

    def __init__(self, knobs: ConnectorModelKnobs, scaler: ScalerClient, store: Store, timeout_s: float) -> None:
        self._roles = {pool.name: pool.role for pool in knobs.pools}
        self._victims: dict[str, VictimRule] = dict.fromkeys(self._roles, "unknown")
        self._prefix = prefix_of(knobs.namespace)
        self._scaler = scaler
        self._store = store
        self._timeout_s = timeout_s
        self._entries: dict[str, StoreEntry] = {}
        self._state: ConnectorState | None = None
        self._open: ReceivedDecision | None = None
        self._detail = ""
        self._changed = asyncio.Event()
        self._unacknowledged: int | None = None
        self._unacknowledged_since_s = 0.0
        self._repeat_at_s = 0.0
        self._retry_s = _RETRY_FIRST_S

    async def offer(self, received: ReceivedDecision) -> None:
        """Accept a decision, or refuse one for other pools than the configured ones."""
        problem = self._mismatch(received)
        if problem:
            await self._scaler.refuse(received, problem)
            return
        await self._scaler.accept(received, self._victims)
        self._open, self._detail = received, ""
        self._changed.set()

    async def follow(self) -> None:
        """Keep the contents of the keys up to date until cancelled."""
        await self._store.follow(self._prefix, self._on_snapshot, self._on_changes, self._on_connection)

    async def apply(self) -> None:
        """Apply decisions until cancelled."""
        while True:
            await self._turn()
            await wait_at_most(self._changed, self._delay_s())
            self._changed.clear()

    def _delay_s(self) -> float:
        """Return the time until an acknowledgement is overdue, or the decision is written again."""
        left_s = self._timeout_s - self._waited_s() if self._unacknowledged is not None else _REPEAT_S
        return min(_REPEAT_S, left_s) if left_s > 0 else _REPEAT_S

    async def _turn(self) -> None:
        """Take the next step of the open decision."""
        received, state = self._open, self._state
        if received is None:
            return
        if state is None:
            await self._explain(received, "Dynamo's etcd was not read yet; compare etcd.endpoints with ETCD_ENDPOINTS")
            return
        counts = _counts(received)
        timed_out = self._unacknowledged is not None and self._waited_s() >= self._timeout_s
        step = next_step(state, counts, timed_out=timed_out)
        if step == "done":
            self._open = None
            await self._scaler.complete(received, _replicas(received))
            _log.info("decision_done", decision=received.decision.decision_id, dynamo_decision=state.decision)
        elif step == "write":
            await self._commit(received, *announcement(self._prefix, state, counts))
        elif timed_out:
            self._open = None
            problem = f"Dynamo's client did not acknowledge decision {state.decision} within {self._timeout_s:.0f} s"
            await self._scaler.refuse(received, f"{problem}. Start the program that runs it, or look at its log.")
        else:
            await self._explain(received, f"waits until Dynamo's client acknowledges its decision {state.decision}")
            if _now_s() >= self._repeat_at_s:
                await self._commit(received, *repetition(self._prefix, state))

    async def _commit(self, received: ReceivedDecision, compares: list[Compare], writes: list[Write]) -> None:
        """Write if the keys are as they were read; the watch tells the result, and of another writer."""
        try:
            result = await self._store.commit(compares, writes)
        except (StoreUnavailable, StoreDenied, OutcomeUnknown) as error:
            await self._explain(received, f"Dynamo's etcd: {error}")
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)
            self._changed.set()
            return
        self._retry_s = _RETRY_FIRST_S
        self._repeat_at_s = _now_s() + _REPEAT_S
        values = {write.key.removeprefix(self._prefix): int(write.value or b"0") for write in writes}
        _log.info("keys_written", prefix=self._prefix, committed=result.committed, **values)

    async def _explain(self, received: ReceivedDecision, detail: str) -> None:
        """Report why a decision waits, once."""
        if detail != self._detail:
            self._detail = detail
            await self._scaler.progress(received, {}, detail)

    def _waited_s(self) -> float:
        """Return the time since this process first saw the present decision unacknowledged."""
        return _now_s() - self._unacknowledged_since_s

    def _mismatch(self, received: ReceivedDecision) -> str:
        """Return the difference between the pools of a decision and those of the configuration; empty: none."""
        for pool, target in received.targets.items():
            if pool not in self._roles:
                return f"pool {pool} is not configured. Add it to models.pools of the scaler."
            if target.role != self._roles[pool]:
                configured = self._roles[pool]
                return f"pool {pool} has the role {target.role}, and {configured} in the scaler's file. Correct it."
        return ""

    def _on_snapshot(self, snapshot: StoreSnapshot) -> None:
        self._entries = {entry.key: entry for entry in snapshot.entries}
        self._publish_state()

    def _on_changes(self, changes: list[StoreChange]) -> None:
        for change in changes:
            if change.entry is None:
                self._entries.pop(change.key, None)
            else:
                self._entries[change.key] = change.entry
        self._publish_state()

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001 - the port's callback
        _log.info("etcd_connection", prefix=self._prefix, connected=connected)

    def _publish_state(self) -> None:
        self._state = state = read_state(self._prefix, self._entries)
        unacknowledged = None if state.ready else state.decision
        if unacknowledged != self._unacknowledged:
            self._unacknowledged, self._unacknowledged_since_s = unacknowledged, _now_s()
            self._repeat_at_s = _now_s() + _REPEAT_S
        self._changed.set()


class DynamoVirtualScaler:
    """Scaler that applies decisions through the keys of Dynamo's virtual connector.

    Args:
        knobs: The configuration.
        scaler: Source of decisions, entered.
        store: Dynamo's etcd.
    """

    def __init__(self, knobs: DynamoVirtualKnobs, scaler: ScalerClient, store: Store) -> None:
        self._scaler = scaler
        timeout_s = knobs.acknowledge_timeout_ms / 1_000
        self._connectors = {model.name: _Connector(model, scaler, store, timeout_s) for model in knobs.models}

    async def run(self) -> None:
        """Apply decisions until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for model, connector in self._connectors.items():
                tasks.create_task(connector.follow(), name=f"keys of {model}")
                tasks.create_task(connector.apply(), name=f"decisions of {model}")
            tasks.create_task(self._receive(), name="decisions")

    async def _receive(self) -> None:
        async for received in self._scaler:
            await self._connectors[received.model].offer(received)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _counts(received: ReceivedDecision) -> Counts:
    counts = {COUNT_OF_ROLE[target.role]: target.replicas for target in received.targets.values()}
    return Counts(counts.get(PREFILL), counts.get(DECODE))


def _replicas(received: ReceivedDecision) -> dict[str, int]:
    return {name: target.replicas for name, target in received.targets.items()}


async def serve(path: Path, only: Sequence[str]) -> None:
    """Run until SIGTERM or SIGINT, for the models of a configuration or some of them.

    Raises:
        ConfigError: The configuration is invalid.
    """
    knobs = read(path)
    models = selected_models(only, [model.name for model in knobs.models])
    stop = asyncio.Event()
    signals.install_handlers(stop.set)
    async with (
        store_of(None, knobs.etcd) as store,
        ScalerClient(knobs.name, models, nats=knobs.nats, root=knobs.root) as scaler,
        running(DynamoVirtualScaler(knobs, scaler, store).run(), "dynamo scaler") as applying,
    ):
        await wait_until_stopped(stop, applying)
