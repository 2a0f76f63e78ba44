"""Actions for operators on the keys of Dynamo's virtual connector, as of a platform."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from loadline.client.resources import store_of
from loadline.core.vocabulary.decisions import VictimRule
from loadline.errors import OutcomeUnknown, StoreDenied, StoreUnavailable
from loadline.ports import Store
from loadline.scalers.dynamo_keys import (
    COUNT_OF_ROLE,
    PREFILL,
    ConnectorState,
    Counts,
    announcement,
    prefix_of,
    read_state,
)
from loadline.scalers.dynamo_virtual_config import ConnectorModelKnobs, ConnectorPoolKnobs, DynamoVirtualKnobs, read
from loadline.scalers.platform import PlatformError, PoolKey, PoolObservation

__all__ = ["ConnectorActions", "connect", "read"]

_POLL_S = 0.5
_START = "Start the program with Dynamo's VirtualConnectorClient, or look at its log."


@asynccontextmanager
async def connect(knobs: DynamoVirtualKnobs) -> AsyncIterator["ConnectorActions"]:
    """Yield the platform of a configuration."""
    async with store_of(None, knobs.etcd) as store:
        yield ConnectorActions(knobs.models, store)


class ConnectorActions:
    """Dynamo namespaces whose counts an operator reads and sets; decisions are applied by ``DynamoVirtualScaler``."""

    def __init__(self, models: Sequence[ConnectorModelKnobs], store: Store) -> None:
        self._store = store
        self._pools: dict[PoolKey, tuple[ConnectorModelKnobs, ConnectorPoolKnobs]] = {
            PoolKey(model.name, pool.name): (model, pool) for model in models for pool in model.pools
        }
        self._victims: dict[PoolKey, VictimRule] = dict.fromkeys(self._pools, "unknown")

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        """Configured pools; the program that applies the counts selects the workers to remove."""
        return self._victims

    async def validate(self) -> Sequence[str]:
        """Return the namespaces that cannot be read or whose decision is not acknowledged."""
        namespaces = sorted({model.namespace for model, _ in self._pools.values()})
        problems = await asyncio.gather(*map(self._problem, namespaces))
        return list(dict.fromkeys(problem for problem in problems if problem))

    async def observe(self, pool: PoolKey) -> PoolObservation:
        """Return the count of a pool; ``ready`` is 0 until it is acknowledged, since Dynamo knows no other state.

        Raises:
            PlatformError: Dynamo's etcd does not answer.
        """
        model, knobs = self._pools[pool]
        state = await self._read(model.namespace)
        stated = state.prefill if COUNT_OF_ROLE[knobs.role] == PREFILL else state.decode
        replicas = max(stated, 0)
        if state.ready:
            return PoolObservation(replicas, replicas)
        detail = f"decision {state.decision} is not acknowledged. {_START}"
        return PoolObservation(replicas, 0, detail=detail, acknowledged=False)

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:
        """Announce a count as Dynamo's next decision, if the one before is acknowledged.

        Raises:
            PlatformError: It is not, another program wrote at the same time, or Dynamo's etcd does not answer.
        """
        model, knobs = self._pools[pool]
        prefill = COUNT_OF_ROLE[knobs.role] == PREFILL
        counts = Counts(replicas, None) if prefill else Counts(None, replicas)
        state = await self._read(model.namespace)
        if state.has(counts):
            return
        if not state.ready:
            raise PlatformError(f"namespace {model.namespace}: decision {state.decision} is not acknowledged. {_START}")
        try:
            result = await self._store.commit(*announcement(prefix_of(model.namespace), state, counts))
        except (StoreUnavailable, StoreDenied, OutcomeUnknown) as error:
            raise PlatformError(f"Dynamo's etcd: {error}") from error
        if not result.committed:
            raise PlatformError(f"namespace {model.namespace}: another program wrote its keys. Repeat the command.")

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:
        """Refuse.

        Raises:
            PlatformError: Always: the program that applies the counts selects the workers.
        """
        raise PlatformError(f"{pool.model} {pool.pool}: Dynamo's keys cannot name {', '.join(workers)}.")

    async def changed(self) -> None:
        """Wait for the time between two reads."""
        await asyncio.sleep(_POLL_S)

    async def _problem(self, namespace: str) -> str:
        """Return the problem of a namespace; empty: there is none."""
        try:
            state = await self._read(namespace)
        except PlatformError as error:
            return str(error)
        return "" if state.ready else f"namespace {namespace}: decision {state.decision} is not acknowledged. {_START}"

    async def _read(self, namespace: str) -> ConnectorState:
        prefix = prefix_of(namespace)
        try:
            snapshot = await self._store.read(prefix)
        except (StoreUnavailable, StoreDenied) as error:
            raise PlatformError(f"Dynamo's etcd: {error}") from error
        return read_state(prefix, {entry.key: entry for entry in snapshot.entries})
