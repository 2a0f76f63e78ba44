"""etcd as ``ports.Store``, with a watch that loses no change."""

import time
from asyncio import sleep
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from loadline.adapters.backoff import backoff
from loadline.adapters.etcd_rpc import EtcdRpc, LeaseNotFound
from loadline.adapters.logs import bounded
from loadline.config import EtcdKnobs
from loadline.errors import StoreDenied, StoreUnavailable
from loadline.ports import CommitResult, Compare, StoreChange, StoreEntry, StoreSnapshot, Write

_log = bounded("etcd")

# Time without a change after which another call checks that the watched member is not frozen.
_IDLE_S = 2.0
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0
# Lifetime of a watch after which the next failure starts the backoff anew.
_STEADY_S = 5.0


class _ResponseHeader(Struct):
    revision: int = 0


class _KeyValue(Struct):
    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class _RangeResponse(Struct):
    header: _ResponseHeader = field(default_factory=_ResponseHeader)
    kvs: list[_KeyValue] = []


class _TxnResponse(Struct):
    header: _ResponseHeader = field(default_factory=_ResponseHeader)
    succeeded: bool = False


class _LeaseResponse(Struct):
    id: int = field(default=0, name="ID")
    ttl: int = field(default=0, name="TTL")


class _KeepAliveResponse(Struct):
    result: _LeaseResponse = field(default_factory=_LeaseResponse)


class _EmptyResponse(Struct):
    pass


class _WatchEvent(Struct):
    kv: _KeyValue
    type: str = "PUT"


class _WatchResponse(Struct):
    canceled: bool = False
    cancel_reason: str = ""
    events: list[_WatchEvent] = []


class _WatchLine(Struct):
    result: _WatchResponse | None = None


_watch_lines = msgspec.json.Decoder(_WatchLine, strict=False)


class EtcdStore:
    """An etcd cluster. Only ``commit`` raises ``OutcomeUnknown``: all other calls are idempotent.

    Args:
        knobs: Endpoints, credentials and timeout of a call.

    Raises:
        ConfigError: An endpoint is no URL or is plain http to another host, or a file cannot be used.
    """

    def __init__(self, knobs: EtcdKnobs) -> None:
        self._rpc = EtcdRpc(knobs)

    async def grant(self, ttl_s: int) -> int:
        """Grant a lease and return its id. A lease whose answer was lost expires by itself."""
        return (await self._rpc.call("/lease/grant", {"TTL": ttl_s}, _LeaseResponse)).id

    async def keep_alive(self, lease_id: int) -> int:
        """Renew a lease and return its TTL in s; 0 when the lease is lost."""
        # For a lost lease etcd answers without a TTL instead of an error.
        return (await self._rpc.call("/lease/keepalive", {"ID": lease_id}, _KeepAliveResponse)).result.ttl

    async def revoke(self, lease_id: int) -> None:
        """Revoke a lease, which removes its keys; a lease that no longer exists is no error."""
        try:
            await self._rpc.call("/lease/revoke", {"ID": lease_id}, _EmptyResponse)
        except LeaseNotFound:
            return

    async def read(self, prefix: str) -> StoreSnapshot:
        """Return all entries under a prefix in key order, with a linearizable read."""
        answer = await self._rpc.call("/kv/range", _prefix_range(prefix), _RangeResponse)
        return StoreSnapshot(entries=[_entry(pair) for pair in answer.kvs], revision=answer.header.revision)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        """Apply all writes (at most 128) if all comparisons hold, or none."""
        body = {"compare": [_compare(compare) for compare in compares], "success": [_write(write) for write in writes]}
        answer = await self._rpc.call("/kv/txn", body, _TxnResponse, repeatable=False)
        return CommitResult(committed=answer.succeeded, revision=answer.header.revision)

    async def follow(
        self,
        prefix: str,
        on_snapshot: Callable[[StoreSnapshot], None],
        on_changes: Callable[[list[StoreChange]], None],
        on_connection: Callable[[bool], None],
    ) -> None:
        """Watch a prefix until cancelled: a snapshot, then every change in order; a new snapshot after any gap.

        ``on_connection`` is called whenever the connection is established or lost. A frozen server is detected after
        2 s plus the timeout of a call, a vanished one after 11 s.
        """
        reported: bool | None = None

        def report(connected: bool) -> None:  # noqa: FBT001 - the port's callback
            nonlocal reported
            if connected is not reported:
                reported = connected
                on_connection(connected)

        waits = backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            began = time.monotonic()
            try:
                snapshot = await self.read(prefix)
                report(True)  # noqa: FBT003
                on_snapshot(snapshot)
                await self._watch(prefix, snapshot.revision + 1, on_changes)
            except (StoreUnavailable, StoreDenied) as error:
                report(False)  # noqa: FBT003
                _log.warning("etcd_watch_ended", prefix=prefix, error=str(error))
            if time.monotonic() - began > _STEADY_S:
                waits = backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
            await sleep(next(waits))

    async def close(self) -> None:
        """Close all connections."""
        await self._rpc.close()

    async def _watch(self, prefix: str, revision: int, on_changes: Callable[[list[StoreChange]], None]) -> None:
        """Pass on all changes from a revision on; return when the watch ends, such as after a compaction."""
        endpoint = self._rpc.endpoint

        def on_line(line: bytes) -> bool:
            try:
                watched = _watch_lines.decode(line).result
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise StoreUnavailable(f"etcd /watch: the answer cannot be decoded: {error}") from error
            if watched is None or watched.canceled:
                _log.info("etcd_watch_canceled", prefix=prefix, reason=watched.cancel_reason if watched else "error")
                return False
            if watched.events:
                on_changes([_change(event) for event in watched.events])
            return True

        async def check_member() -> None:
            await self._rpc.call("/kv/range", {"key": prefix.encode() or b"\0"}, _RangeResponse, endpoint=endpoint)

        body = {"create_request": {**_prefix_range(prefix), "start_revision": revision}}
        await self._rpc.stream("/watch", body, endpoint=endpoint, on_line=on_line, idle_s=_IDLE_S, on_idle=check_member)


def _prefix_range(prefix: str) -> dict[str, bytes]:
    """Return the range of all keys with a prefix: its end is the prefix with the last byte incremented."""
    start = prefix.encode()
    stem = start.rstrip(b"\xff")
    return {"key": start or b"\0", "range_end": stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"}


def _key(raw: bytes) -> str:
    # A key that is not UTF-8 belongs to another program; it must not break the watch.
    return raw.decode(errors="backslashreplace")


def _entry(pair: _KeyValue) -> StoreEntry:
    return StoreEntry(_key(pair.key), pair.value, pair.create_revision, pair.mod_revision, pair.lease)


def _change(event: _WatchEvent) -> StoreChange:
    return StoreChange(_key(event.kv.key), _entry(event.kv) if event.type == "PUT" else None, event.kv.mod_revision)


def _compare(compare: Compare) -> dict[str, Any]:
    name = f"{compare.target}_revision"
    return {
        "key": compare.key.encode(),
        "target": compare.target.upper(),
        "result": "EQUAL",
        name: compare.revision,
    }


def _write(write: Write) -> dict[str, Any]:
    if write.value is None:
        return {"request_delete_range": {"key": write.key.encode()}}
    return {"request_put": {"key": write.key.encode(), "value": write.value, "lease": write.lease_id}}
