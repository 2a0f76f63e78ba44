"""Clusters of nats-server and of etcd on this machine, with one member or several."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from loadline.rig.server_processes import EtcdServer, NatsServer, Server, free_port, start_together

_Member = TypeVar("_Member", bound=Server)


class EtcdMember(EtcdServer):
    """Member of an etcd cluster.

    Args:
        directory: Folder of its log and data.
        peer_ports: Ports between the members, by name of the member, which is that of its folder.
        fsync: True if writes reach the disk before they are acknowledged, as in production.
        options: Further options of etcd, without dashes.
    """

    def __init__(
        self, directory: Path, peer_ports: Mapping[str, int], *, fsync: bool, options: Mapping[str, str]
    ) -> None:
        # 100 ms, as for one member, would depose a leader of etcd each time that the machine is busy.
        options = {"heartbeat-interval": "50", "election-timeout": "500", **options}
        super().__init__(directory, fsync=fsync, options=options)
        self.port = free_port()
        self._peers = {name: f"http://127.0.0.1:{port}" for name, port in peer_ports.items()}
        self._peer_port = peer_ports[directory.name]

    def _membership(self) -> dict[str, str]:
        name = self.directory.name
        cluster = ",".join(f"{member}={url}" for member, url in self._peers.items())
        return {"name": name, "initial-advertise-peer-urls": self._peers[name], "initial-cluster": cluster}


class Cluster(Generic[_Member]):
    """Servers of one kind that clients use as one.

    Args:
        members: The servers.
    """

    def __init__(self, members: Sequence[_Member]) -> None:
        self.members = tuple(members)
        self.restarting = asyncio.Lock()
        """Held while members are started or their data replaced, since several faults may do so."""

    @property
    def name(self) -> str:
        """Name of the program."""
        return self.members[0].name

    @property
    def urls(self) -> tuple[str, ...]:
        """URLs of all members, for clients."""
        return tuple(member.url for member in self.members)

    def start(self) -> None:
        """Start all members; return when all are ready. Start it in a long-lived thread, as a server."""
        start_together(self.members)

    async def start_async(self) -> None:
        """Start the members that do not run, without blocking the event loop; return when all are ready."""
        # In a thread, a member would end with that thread.
        await asyncio.gather(*(member.start_async() for member in self.members if not member.alive))

    def stop(self) -> None:
        """Stop all members."""
        for member in self.members:
            member.stop()


def etcd_cluster(
    directory: Path, count: int, *, fsync: bool = False, options: Mapping[str, str] | None = None
) -> Cluster[EtcdServer]:
    """Return a cluster of etcd, not started, with a folder for each member and further ``options``, without dashes."""
    if count == 1:
        return Cluster([EtcdServer(directory / "etcd-1", fsync=fsync, options=options)])
    peer_ports = {f"etcd-{number}": free_port() for number in range(1, count + 1)}
    return Cluster(
        [EtcdMember(directory / name, peer_ports, fsync=fsync, options=options or {}) for name in peer_ports]
    )


def nats_cluster(directory: Path, count: int) -> Cluster[NatsServer]:
    """Return a cluster of nats-server, not started, with a folder for each member."""
    if count == 1:
        return Cluster([NatsServer(directory / "nats-1")])
    ports = {f"nats-{number}": free_port() for number in range(1, count + 1)}
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports.values())
    members = []
    for name, port in ports.items():
        # Without no_advertise, a client would learn the addresses of members that it was not given.
        cluster = f'cluster {{ name: local, listen: "127.0.0.1:{port}", routes: [{routes}], no_advertise: true }}\n'
        member = NatsServer(directory / name, cluster)
        member.port = free_port()
        members.append(member)
    return Cluster(members)
