"""Clusters of nats-server and of etcd, with one member or three."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from loadline.rig.servers import EtcdServer, NatsServer, Server, free_port

CLUSTER_MEMBERS: Final = 3
QUOTA_BYTES: Final = 32 * 2**20
"""Size of etcd's data above which it takes no more."""
TOKEN_TTL_S: Final = 10
"""Life of a login; unlike etcd's simple tokens, a JWT ends even if it is used."""

_Member = TypeVar("_Member", bound=Server)


class EtcdMember(EtcdServer):
    """Member of an etcd cluster.

    Args:
        directory: Folder of its log and data.
        peer_ports: Ports between the members, by name of the member, which is that of its folder.
    """

    def __init__(self, directory: Path, peer_ports: dict[str, int]) -> None:
        super().__init__(directory)
        self.port = free_port()
        self._peers = {name: f"http://127.0.0.1:{port}" for name, port in peer_ports.items()}
        self._peer_port = peer_ports[directory.name]

    def _membership(self) -> dict[str, str]:
        name = self.directory.name
        cluster = ",".join(f"{member}={url}" for member, url in self._peers.items())
        return {"name": name, "initial-advertise-peer-urls": self._peers[name], "initial-cluster": cluster}

    def _options(self) -> dict[str, str]:
        key = self.directory / "token.key"
        key.write_text("chaos", encoding="utf-8")
        options = super()._options() | {
            "quota-backend-bytes": str(QUOTA_BYTES),
            "auth-token": f"jwt,sign-method=HS256,priv-key={key},ttl={TOKEN_TTL_S}s",
            "bcrypt-cost": "4",
        }
        if len(self._peers) > 1:
            # 100 ms, as for one member, would depose a leader of etcd each time that the machine is busy.
            options |= {"heartbeat-interval": "50", "election-timeout": "500"}
        return options


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

    async def start(self) -> None:
        """Start the members that do not run; return when all are ready."""
        # In a thread, a member would end with that thread.
        await asyncio.gather(*(member.start_async() for member in self.members if not member.alive))

    async def stop(self) -> None:
        """Stop all members."""
        for member in self.members:
            await asyncio.to_thread(member.stop)


def etcd_cluster(directory: Path, count: int) -> Cluster[EtcdMember]:
    """Return a cluster of etcd, not started, with a folder for each member."""
    peer_ports = {f"etcd-{number}": free_port() for number in range(1, count + 1)}
    return Cluster([EtcdMember(directory / name, peer_ports) for name in peer_ports])


def nats_cluster(directory: Path, count: int) -> Cluster[NatsServer]:
    """Return a cluster of nats-server, not started, with a folder for each member."""
    ports = {f"nats-{number}": free_port() for number in range(1, count + 1)}
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports.values())
    members = []
    for name, port in ports.items():
        # Without no_advertise, an agent would learn the addresses of servers that no proxy is in front of.
        cluster = f'cluster {{ name: chaos, listen: "127.0.0.1:{port}", routes: [{routes}], no_advertise: true }}\n'
        member = NatsServer(directory / name, cluster if count > 1 else "")
        member.port = free_port()
        members.append(member)
    return Cluster(members)
