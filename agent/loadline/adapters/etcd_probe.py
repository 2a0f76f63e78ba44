"""Facts about each member of an etcd cluster, and permissions tried without a write."""

import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct, field

from loadline.adapters.etcd_rpc import EtcdRpc
from loadline.adapters.etcd_store import EtcdStore
from loadline.errors import LoadlineError, StoreDenied
from loadline.ports import Compare, Write
from loadline.servers import EtcdKnobs

# No key has this revision: 2**62 writes take longer than any cluster lives.
_NEVER: Final = 2**62
_HALF_SECOND_MS: Final = 500


class MemberStatus(Struct, frozen=True):
    """A member of the cluster."""

    version: str = ""
    db_size: int = 0
    """Size of its database in bytes."""
    quota: int = 0
    """Size at which etcd refuses writes; 0: it does not tell, as before 3.6."""
    alarms: tuple[str, ...] = ()
    clock_offset_ms: int | None = None
    """Its clock minus that of this host, to half a second; None: it does not tell."""


class Lease(Struct, frozen=True):
    """A lease."""

    ttl_s: int
    """Time until it expires; negative: it has expired."""
    granted_s: int


class _Status(Struct, rename="camel"):
    version: str = ""
    db_size: int = 0
    db_size_quota: int = 0
    errors: list[str] = []


class _LeaseReply(Struct):
    ttl: int = field(default=0, name="TTL")
    granted_ttl: int = field(default=0, name="grantedTTL")


class EtcdProbe:
    """Calls to a cluster.

    Args:
        knobs: Endpoints and credentials.
        store: Store on the same cluster, for transactions.

    Raises:
        ConfigError: An endpoint is no URL or is plain http to another host, or a file cannot be used.
    """

    def __init__(self, knobs: EtcdKnobs, store: EtcdStore) -> None:
        self._rpc = EtcdRpc(knobs)
        self._store = store

    async def member(self, endpoint: int) -> MemberStatus:
        """Return the status of the member at an endpoint.

        Raises:
            LoadlineError: It gives none.
        """
        found = await self._rpc.call("/maintenance/status", {}, _Status, endpoint=endpoint)
        offset_ms = _offset_ms(self._rpc.dates.get(endpoint, ""))
        return MemberStatus(found.version, found.db_size, found.db_size_quota, tuple(found.errors), offset_ms)

    async def lease(self, lease_id: int) -> Lease:
        """Return the remaining and the granted time of a lease.

        Raises:
            LoadlineError: etcd gives no answer.
        """
        found = await self._rpc.call("/lease/timetolive", {"ID": lease_id}, _LeaseReply)
        return Lease(found.ttl, found.granted_ttl)

    async def refused_writes(self, writes: Sequence[Write]) -> dict[str, str]:
        """Try transactions that would write if a condition held that never holds; return the errors by key.

        etcd checks permissions and its quota for all branches of a transaction, also for those that it does not take.
        """
        refused: dict[str, str] = {}
        for write in writes:
            try:
                await self._store.commit([Compare(write.key, "create", _NEVER)], [write])
            except StoreDenied as error:
                refused[write.key] = str(error)
            except LoadlineError as error:
                refused[write.key] = f"no answer: {error}"
        return refused

    async def close(self) -> None:
        """Close all connections."""
        await self._rpc.close()


def _offset_ms(date: str) -> int | None:
    """Return the difference of an HTTP date, which is cut to seconds, to the clock of this host."""
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000 + _HALF_SECOND_MS - time.time() * 1000)
    except ValueError:
        return None
