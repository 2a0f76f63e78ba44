"""Connection of a program that is no agent: a part of an agent's configuration, or a file with these sections only."""

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.servers import EtcdKnobs, Knobs, NatsKnobs, check_logins, check_servers
from loadline.toml.checking import checked
from loadline.toml.reading import read_table


class FleetNames(Knobs, frozen=True):
    """Names that all programs of a fleet share."""

    root: Annotated[str, Meta(max_length=100, pattern=r"^[A-Za-z0-9_.-]+\Z")] = "loadline"
    namespace: Name = "default"


class FleetConnection(Knobs, frozen=True):
    """Servers and logins of a program."""

    agent: FleetNames = FleetNames()
    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()


def load_connection(path: Path) -> FleetConnection:
    """Read the sections ``[nats]`` and ``[etcd]`` of a file, and ``root`` and ``namespace`` of its section ``[agent]``.

    Everything else is ignored, so the file may be an agent's; a program with a login of its own has one of its own.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    table = read_table(path)
    sections: dict[str, Any] = {name: table[name] for name in ("nats", "etcd") if name in table}
    agent = table.get("agent", {})
    if not isinstance(agent, dict):
        raise ConfigError("agent", f"is {agent!r}", "Write a table.")
    names = {name: agent[name] for name in ("root", "namespace") if name in agent}
    connection = checked({"agent": names, **sections}, FleetConnection)
    check_servers(connection.nats.servers, "nats.servers", ("nats", "tls"))
    check_servers(connection.etcd.endpoints, "etcd.endpoints", ("http", "https"))
    check_logins(connection.nats, connection.etcd)
    return connection
