"""Operator of etcd: users, space and backups; tries again until it succeeds, as other faults may last."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from os import urandom
from pathlib import Path
from random import Random
from subprocess import CalledProcessError, TimeoutExpired
from typing import Final

from msgspec import Struct

from loadline.adapters.etcd_rpc import EtcdRpc
from loadline.errors import LoadlineError
from loadline.rig.clusters import Cluster
from loadline.rig.server_processes import EtcdServer
from loadline.servers import EtcdKnobs

USER: Final = "fleet"
PASSWORD: Final = "chaos"  # noqa: S105 - of servers that live as long as a run
_ROOT: Final = "root"
_VALUE_BYTES: Final = 2**20
_FILLER: Final = b"/filler/"
_PATIENCE_S: Final = 60.0
_RETRY_S: Final = 0.2


class _Header(Struct):
    member_id: str = ""
    revision: int = 0


class _AuthStatus(Struct):
    enabled: bool = False


class _Range(Struct):
    header: _Header


class _Status(Struct):
    header: _Header
    leader: str = ""


class _Member(Struct):
    ID: str


class _Members(Struct):
    members: list[_Member]


class _Alarm(Struct):
    memberID: str  # noqa: N815 - the name in etcd
    alarm: str


class _Alarms(Struct):
    alarms: list[_Alarm] = []


class EtcdOperator:
    """Operator of a cluster of etcd.

    Args:
        cluster: The cluster.
        directory: Folder of passwords and snapshots.
        prefix: Prefix of the fleet's keys.
        secured: Whether etcd asks for a login.
    """

    def __init__(self, cluster: Cluster[EtcdServer], directory: Path, prefix: str, *, secured: bool) -> None:
        self._cluster = cluster
        self._directory = directory
        self._prefix = prefix.encode()
        self._secured = secured
        self._password_file = directory / "etcd-password"

    @property
    def knobs(self) -> EtcdKnobs:
        """Connection of the operator, which passes no proxy."""
        return self._login(_ROOT)

    @property
    def fleet_knobs(self) -> EtcdKnobs:
        """Connection of the fleet's programs."""
        return self._login(USER)

    async def start(self) -> None:
        """Start the members that do not run, and secure an etcd that has no users yet."""
        await self._cluster.start_async()
        if self._secured:
            self._password_file.write_text(PASSWORD, encoding="utf-8")
            await self._insist(self._secure)

    async def compact(self) -> None:
        """Compact at the present revision, so that a watch which is behind must read anew."""
        await self._insist(self._compact)

    async def move_leader(self, rng: Random) -> None:
        """Let the leader of etcd give its place to another member."""

        async def move(rpc: EtcdRpc) -> None:
            for endpoint in range(len(self._cluster.members)):
                with suppress(LoadlineError):  # this member may be down
                    status = await rpc.call("/maintenance/status", {}, _Status, endpoint=endpoint)
                    if status.header.member_id == status.leader:
                        members = (await rpc.call("/cluster/member/list", {}, _Members)).members
                        target = rng.choice([member.ID for member in members if status.leader != member.ID])
                        body = {"targetID": target}
                        await rpc.call("/maintenance/transfer-leadership", body, Struct, endpoint=endpoint)
                        return

        await self._insist(move)

    async def fill(self) -> None:
        """Write until etcd refuses to take more."""

        async def fill(rpc: EtcdRpc) -> None:
            number = 0
            while not (await rpc.call("/maintenance/alarm", {"action": "GET"}, _Alarms)).alarms:
                body = {"key": _FILLER + b"%d" % number, "value": urandom(_VALUE_BYTES)}
                with suppress(LoadlineError):  # refused: the alarm follows
                    await rpc.call("/kv/put", body, Struct)
                number += 1

        await self._insist(fill)

    async def make_space(self) -> None:
        """Delete, compact, defragment and disarm, as etcd's manual says."""

        async def make_space(rpc: EtcdRpc) -> None:
            await rpc.call("/kv/deleterange", {"key": _FILLER, "range_end": _end(_FILLER)}, Struct)
            await self._compact(rpc)
            for endpoint in range(len(self._cluster.members)):
                await rpc.call("/maintenance/defragment", {}, Struct, endpoint=endpoint)
            for alarm in (await rpc.call("/maintenance/alarm", {"action": "GET"}, _Alarms)).alarms:
                body = {"action": "DEACTIVATE", "memberID": alarm.memberID, "alarm": alarm.alarm}
                await rpc.call("/maintenance/alarm", body, Struct)

        await self._insist(make_space)

    async def wipe(self) -> None:
        """Lose all data: kill all members, remove their data and start them."""
        async with self._cluster.restarting:
            for member in self._cluster.members:
                member.kill()
                member.wipe()
            await self.start()

    async def back_up(self, snapshot: Path) -> bool:
        """Save a snapshot; return False if no member can make one now."""
        options = ("--user", f"{_ROOT}:{PASSWORD}") if self._secured else ()
        for member in self._cluster.members:
            with suppress(CalledProcessError, TimeoutExpired):
                await asyncio.to_thread(member.back_up, snapshot, *options)
                return True
        return False

    async def restore(self, snapshot: Path) -> None:
        """Return to a snapshot: kill all members, replace their data and start them."""
        async with self._cluster.restarting:
            for member in self._cluster.members:
                member.kill()
                await asyncio.to_thread(member.restore, snapshot)
            await self.start()

    def _login(self, user: str) -> EtcdKnobs:
        if not self._secured:
            return EtcdKnobs(self._cluster.urls)
        return EtcdKnobs(self._cluster.urls, user, str(self._password_file))

    async def _insist(self, act: Callable[[EtcdRpc], Awaitable[None]]) -> None:
        """Act until it succeeds.

        Raises:
            LoadlineError: It has not succeeded for a minute.
        """
        deadline = time.monotonic() + _PATIENCE_S
        rpc = EtcdRpc(self.knobs)
        try:
            while True:
                try:
                    await act(rpc)
                except LoadlineError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(_RETRY_S)
                else:
                    return
        finally:
            await rpc.close()

    async def _secure(self, rpc: EtcdRpc) -> None:
        """Create the users and turn authentication on, unless it is on."""
        if (await rpc.call("/auth/status", {}, _AuthStatus)).enabled:
            return
        permission = {"permType": "READWRITE", "key": self._prefix, "range_end": _end(self._prefix)}
        for path, body in (
            ("/auth/role/add", {"name": _ROOT}),
            ("/auth/role/add", {"name": USER}),
            ("/auth/role/grant", {"name": USER, "perm": permission}),
            ("/auth/user/add", {"name": _ROOT, "password": PASSWORD}),
            ("/auth/user/add", {"name": USER, "password": PASSWORD}),
            ("/auth/user/grant", {"user": _ROOT, "role": _ROOT}),
            ("/auth/user/grant", {"user": USER, "role": USER}),
            ("/auth/enable", {}),
        ):
            with suppress(LoadlineError):  # an earlier attempt may have done it
                await rpc.call(path, body, Struct)
        if not (await rpc.call("/auth/status", {}, _AuthStatus)).enabled:
            raise LoadlineError("etcd is not secured")

    async def _compact(self, rpc: EtcdRpc) -> None:
        revision = (await rpc.call("/kv/range", {"key": _FILLER}, _Range)).header.revision
        await rpc.call("/kv/compaction", {"revision": revision, "physical": True}, Struct)


def _end(prefix: bytes) -> bytes:
    """Return the end of the range of a prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
