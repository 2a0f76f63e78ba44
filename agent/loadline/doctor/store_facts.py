"""Facts that etcd gives: members, permissions of the login, leader and registered workers."""

import asyncio

from msgspec import Struct

from loadline.adapters.etcd_probe import EtcdProbe, Lease, MemberStatus
from loadline.adapters.etcd_store import EtcdStore
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.doctor import agent_role
from loadline.doctor.deployment import Deployment
from loadline.errors import LoadlineError
from loadline.ports import StoreEntry
from loadline.wire.codec import Rejected, decode_epoch, decode_worker_record
from loadline.wire.keys import Keys


class Leader(Struct, frozen=True):
    """The leader, as etcd knows it."""

    name: str
    epoch: int
    lease: Lease | None


class StoreFacts(Struct, frozen=True):
    """Facts that etcd gives."""

    problem: str = ""
    """Reason why it cannot be read; empty: it can."""
    members: dict[str, MemberStatus | str] = {}
    """Status of each endpoint, or the reason why there is none."""
    refused: dict[str, str] = {}
    """Errors of writes by key."""
    leader: Leader | None = None
    workers: tuple[WorkerRecord, ...] = ()
    unusable: tuple[str, ...] = ()
    """Keys of records that cannot be decoded, with the reason."""


async def gather(deployment: Deployment) -> StoreFacts:
    """Gather the facts; each call is bounded by ``etcd.timeout_ms``.

    Raises:
        ConfigError: An endpoint or a file of the login cannot be used.
    """
    keys = Keys(deployment.namespace)
    store = EtcdStore(deployment.etcd, keys.value_bytes_max, keys.writer)
    probe = EtcdProbe(deployment.etcd, store)
    try:
        endpoints = deployment.etcd.endpoints
        found = await asyncio.gather(*(_member(probe, index) for index in range(len(endpoints))))
        facts = StoreFacts(members=dict(zip(endpoints, found, strict=True)))
        try:
            entries = (await store.read(keys.prefix)).entries
        except LoadlineError as error:
            return StoreFacts(problem=str(error), members=facts.members)
        workers, unusable = _registrations(keys, entries)
        return StoreFacts(
            members=facts.members,
            refused=await probe.refused_writes(agent_role.writes(deployment)),
            leader=await _leader(probe, keys, deployment.leader_scope, {entry.key: entry for entry in entries}),
            workers=workers,
            unusable=unusable,
        )
    finally:
        await probe.close()
        await store.close()


async def _member(probe: EtcdProbe, endpoint: int) -> MemberStatus | str:
    try:
        return await probe.member(endpoint)
    except LoadlineError as error:
        return str(error)


async def _leader(probe: EtcdProbe, keys: Keys, scope: str, entries: dict[str, StoreEntry]) -> Leader | None:
    entry = entries.get(keys.leader(scope))
    if entry is None:
        return None
    epoch = entries.get(keys.epoch(scope))
    try:
        lease = await probe.lease(entry.lease_id)
    except LoadlineError:
        lease = None
    return Leader(entry.value.decode(errors="replace"), decode_epoch(epoch.value) if epoch else 0, lease)


def _registrations(keys: Keys, entries: list[StoreEntry]) -> tuple[tuple[WorkerRecord, ...], tuple[str, ...]]:
    workers, unusable = [], []
    for entry in entries:
        if not entry.key.startswith(keys.workers):
            continue
        try:
            record = decode_worker_record(keys.split(entry.key), entry.value, entry.bytes_left_out)
        except ValueError as error:
            unusable.append(str(error))
            continue
        if isinstance(record, Rejected):
            unusable.append(f"{entry.key}: {record.detail}")
        else:
            workers.append(record)
    return tuple(workers), tuple(unusable)
