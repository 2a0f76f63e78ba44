"""Implementation of ``ports.Store`` on etcd, with paged reads and watches without gaps.

A client with write access to a single key can store a value as large as etcd permits. Each reply is therefore limited
to one page, and a value above the limit of its key is omitted from its entry: it uses no memory, and all other keys
stay readable. The entries of one writer are bounded together.
"""

import time
from asyncio import sleep
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from loadline.adapters.backoff import backoff
from loadline.adapters.etcd_rpc import REPLY_BYTES_MAX, EtcdRpc, LeaseNotFound, ReplyTooLong
from loadline.adapters.kept_entries import KeptEntries
from loadline.adapters.logs import bounded
from loadline.adapters.outage_reasons import OutageReasons
from loadline.errors import StoreDenied, StoreUnavailable
from loadline.ports import CommitResult, Compare, StoreChange, StoreEntry, StoreSnapshot, Write
from loadline.servers import EtcdKnobs

_log = bounded("etcd")

# A watch without changes for this long is checked with a read from the same member: a frozen member keeps the
# connection of the watch open.
_IDLE_S = 2.0
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0
# Number of keys per page. 64 worker records take 60 kB, and 20,000 are read in 1 s; etcd needs 1 s to encode 64 records
# of 1 MB. After a page above 4 MiB or a timeout, the next page has fewer keys. A page of a single key may be longer.
_PAGE_KEYS_FIRST = 16
_PAGE_KEYS_MAX = 64
_PAGE_KEYS_DIVISOR = 4
_PAGE_BYTES_MAX = 4 * 2**20
# The longest key of an agent or worker has three names of 100 characters, in percent-encoding 3,600 bytes. A longer key
# belongs to another program.
_KEY_BYTES_MAX = 4_096
_KEY_CHARS_LOGGED = 100
_TOO_MANY_ENTRIES = "find out who writes so many keys; those created last are ignored"
# Default limit of an etcd request: 1.5 MiB.
_VALUE_BYTES_MAX = 1_572_864
# A watch that ends after this time resets the backoff.
_BACKOFF_RESET_S = 5.0


class _ResponseHeader(Struct):
    revision: int = 0


class _KeyValue(Struct):
    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0
    bytes_left_out: int = 0
    """Minimum size of a value that ``_range`` omitted because it does not fit into a reply; otherwise 0."""


class _RangeResponse(Struct):
    header: _ResponseHeader = field(default_factory=_ResponseHeader)
    kvs: list[_KeyValue] = []
    more: bool = False


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
    """Client of an etcd cluster. Only ``commit`` raises ``OutcomeUnknown``: all other calls are idempotent.

    Args:
        knobs: Endpoints, credentials and timeout of a call.
        value_bytes_max: Function that returns the maximum size of a key's value; a larger value is omitted.
        writer_of: Function that returns who writes a key; in a read the entries of each are bounded, but those of "".

    Raises:
        ConfigError: An endpoint is not a URL or uses plain HTTP to another host, or a file cannot be read.
    """

    def __init__(
        self,
        knobs: EtcdKnobs,
        value_bytes_max: Callable[[str], int] = lambda _key: _VALUE_BYTES_MAX,
        writer_of: Callable[[str], str] = lambda _key: "",
    ) -> None:
        self._rpc = EtcdRpc(knobs)
        self._value_bytes_max = value_bytes_max
        self._writer_of = writer_of
        self._page_keys = _PAGE_KEYS_FIRST

    async def grant(self, ttl_s: int) -> int:
        """Grant a lease and return its id. If the reply is lost, the lease expires."""
        return (await self._rpc.call("/lease/grant", {"TTL": ttl_s}, _LeaseResponse)).id

    async def keep_alive(self, lease_id: int) -> int:
        """Renew a lease and return its TTL in s; 0 when the lease is lost."""
        # For a lost lease etcd answers without a TTL instead of an error.
        return (await self._rpc.call("/lease/keepalive", {"ID": lease_id}, _KeepAliveResponse)).result.ttl

    async def revoke(self, lease_id: int) -> None:
        """Revoke a lease, which removes its keys; do nothing if it no longer exists."""
        try:
            await self._rpc.call("/lease/revoke", {"ID": lease_id}, _EmptyResponse)
        except LeaseNotFound:
            return

    async def get(self, key: str) -> StoreEntry | None:
        """Return the entry of a key from a linearizable read; None if the key does not exist."""
        answer = await self._range({"key": key.encode()}, 1)
        return next((self._entry(pair) for pair in answer.kvs), None)

    async def read(self, prefix: str) -> StoreSnapshot:
        """Return all entries under a prefix in key order, with a linearizable read in pages of one revision."""
        body: dict[str, Any] = _prefix_range(prefix)
        entries = KeptEntries(self._writer_of)
        while True:
            limit = self._page_keys
            try:
                page = await self._range(body, limit)
            except StoreUnavailable as error:
                self._page_keys = max(1, limit // _PAGE_KEYS_DIVISOR)
                if isinstance(error, ReplyTooLong) and limit > 1:
                    continue
                raise
            self._page_keys = min(2 * limit, _PAGE_KEYS_MAX)
            for pair in page.kvs:
                if _has_usable_key(pair):
                    entries.add(self._entry(pair))
            # Read all pages at the revision of the first. If etcd compacts it meanwhile, the whole read fails.
            body = {"revision": page.header.revision} | body
            if not page.more:
                for writer, count in entries.left_out().items():
                    _log.warning("etcd_entries_left_out", writer=writer, count=count, remedy=_TOO_MANY_ENTRIES)
                return StoreSnapshot(entries.in_key_order(), int(body["revision"]))
            if not page.kvs:
                raise StoreUnavailable("etcd /kv/range: a page without keys is not the last one")
            body["key"] = page.kvs[-1].key + b"\0"

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
        """Watch a prefix until cancelled: pass a snapshot, then all changes in order; after a gap, a new snapshot.

        ``on_connection`` is called whenever the connection is established or lost. A frozen server is detected after
        2 s plus the timeout of a call, an unreachable one after 11 s.
        """
        reported: bool | None = None
        reasons = OutageReasons()

        def report(connected: bool) -> None:  # noqa: FBT001 - the port's callback
            nonlocal reported
            if connected is not reported:
                reported = connected
                on_connection(connected)

        waits = backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            started_s = time.monotonic()
            try:
                snapshot = await self.read(prefix)
                report(True)  # noqa: FBT003
                reasons.end()
                on_snapshot(snapshot)
                await self._watch(prefix, snapshot.revision + 1, on_changes)
            except (StoreUnavailable, StoreDenied) as error:
                report(False)  # noqa: FBT003
                if reasons.is_new(str(error)):
                    _log.warning("etcd_watch_ended", prefix=prefix, detail=str(error))
            if time.monotonic() - started_s > _BACKOFF_RESET_S:
                waits = backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
            await sleep(next(waits))

    async def close(self) -> None:
        """Close all connections."""
        await self._rpc.close()

    async def _range(self, body: dict[str, Any], limit: int) -> _RangeResponse:
        """Read a page.

        Raises:
            ReplyTooLong: The page is too long and has more than one key.
        """
        body = body | {"limit": limit}
        if limit > 1:
            return await self._rpc.call("/kv/range", body, _RangeResponse, bytes_max=_PAGE_BYTES_MAX)
        try:
            return await self._rpc.call("/kv/range", body, _RangeResponse)
        except ReplyTooLong:
            page = await self._rpc.call("/kv/range", body | {"keys_only": True}, _RangeResponse)
            for pair in page.kvs:
                pair.bytes_left_out = REPLY_BYTES_MAX
            return page

    def _entry(self, pair: _KeyValue) -> StoreEntry:
        key, value, left_out = _key(pair.key), pair.value, pair.bytes_left_out
        if len(value) > self._value_bytes_max(key):
            value, left_out = b"", len(value)
        return StoreEntry(key, value, pair.create_revision, pair.mod_revision, pair.lease, left_out)

    def _change(self, event: _WatchEvent) -> StoreChange:
        entry = self._entry(event.kv) if event.type == "PUT" else None
        return StoreChange(_key(event.kv.key), entry, event.kv.mod_revision)

    async def _watch(self, prefix: str, revision: int, on_changes: Callable[[list[StoreChange]], None]) -> None:
        """Pass all changes from a revision on to the callback; return when etcd cancels or ends the watch."""
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
                on_changes([self._change(event) for event in watched.events if _has_usable_key(event.kv)])
            return True

        async def check_member() -> None:
            await self._rpc.call("/kv/range", {"key": prefix.encode() or b"\0"}, _RangeResponse, endpoint=endpoint)

        # Without fragments, etcd sends all changes since a revision, and all deletions of a revoked lease, as one
        # message of unbounded length.
        body = {"create_request": {**_prefix_range(prefix), "start_revision": revision, "fragment": True}}
        await self._rpc.stream("/watch", body, endpoint=endpoint, on_line=on_line, idle_s=_IDLE_S, on_idle=check_member)


def _prefix_range(prefix: str) -> dict[str, bytes]:
    """Return the range of all keys with a prefix: its end is the prefix with the last byte incremented."""
    start = prefix.encode()
    stem = start.rstrip(b"\xff")
    return {"key": start or b"\0", "range_end": stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"}


def _key(raw: bytes) -> str:
    # A key that is not UTF-8 belongs to another program; it must not break the watch.
    return raw.decode(errors="backslashreplace")


def _has_usable_key(pair: _KeyValue) -> bool:
    if len(pair.key) <= _KEY_BYTES_MAX:
        return True
    _log.warning("etcd_key_ignored", key=_key(pair.key[:_KEY_CHARS_LOGGED]), bytes=len(pair.key))
    return False


def _compare(compare: Compare) -> dict[str, Any]:
    name = "lease" if compare.target == "lease" else f"{compare.target}_revision"
    return {"key": compare.key.encode(), "target": compare.target.upper(), "result": "EQUAL", name: compare.number}


def _write(write: Write) -> dict[str, Any]:
    if write.value is None:
        return {"request_delete_range": {"key": write.key.encode()}}
    return {"request_put": {"key": write.key.encode(), "value": write.value, "lease": write.lease_id}}
