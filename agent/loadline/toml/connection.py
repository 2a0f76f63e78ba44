"""Connection of a program that is no agent: a part of an agent's configuration, or a file with these sections only."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.servers import EtcdKnobs, Knobs, NatsKnobs, check_certificate_use, check_logins, check_servers
from loadline.toml.checking import checked, did_you_mean
from loadline.toml.environment import ENVIRONMENT_PREFIX, apply_variables, variables_in
from loadline.toml.lines import FileLines, key_lines
from loadline.toml.reading import parse_table, read_text


class FleetNames(Knobs, frozen=True):
    """Names that all programs of a fleet share, and the task of the agent that commands are for."""

    root: Annotated[str, Meta(max_length=100, pattern=r"^[A-Za-z0-9_.-]+\Z")] = "loadline"
    namespace: Name = "default"
    only: Literal["", "migration"] = ""


class FleetConnection(Knobs, frozen=True):
    """Servers and logins of a program."""

    agent: FleetNames = FleetNames()
    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()


_BOTH: Final[Mapping[str, str | None]] = MappingProxyType({"nats": None, "etcd": None})
_URLS: Final = {"nats": "servers", "etcd": "endpoints"}
"""Key of the URLs in each section."""


def load_connection(
    path: Path | None, environ: Mapping[str, str] = os.environ, servers: Mapping[str, str | None] = _BOTH
) -> FleetConnection:
    """Read the sections of servers in a file and a part of ``[agent]``, and apply their variables.

    Everything else is ignored, so the file may be an agent's; a program with a login of its own has one of its own.

    Args:
        path: The file; None: there are only variables.
        environ: Environment.
        servers: Sections of the servers that the program uses, ``nats`` and ``etcd``, each with the URL of its option
            ``--nats`` or ``--etcd``, which replaces the servers there; None: the option is not given.

    Raises:
        ConfigError: The file cannot be read, or a value in it or in a variable is invalid.
    """
    text = "" if path is None else read_text(path)
    table = parse_table(text, str(path))
    variables = {name: value for name, value in variables_in(environ).items() if _is_read(name, servers)}
    replaced = apply_variables(table, FleetConnection, variables, lambda key, known, _section: did_you_mean(key, known))
    for section, url in servers.items():
        if url is not None and isinstance(knobs := table.setdefault(section, {}), dict):
            knobs[_URLS[section]] = [url]
            replaced[f"{section}.{_URLS[section]}"] = f"--{section}"
    lines = FileLines("" if path is None else str(path), key_lines(text), replaced)
    try:
        return _connection(table, servers)
    except ConfigError as error:
        ConfigError.raise_all(map(lines.located, error.errors))
        raise


def _connection(table: dict[str, Any], servers: Mapping[str, str | None]) -> FleetConnection:
    sections: dict[str, Any] = {name: table[name] for name in servers if name in table}
    agent = table.get("agent", {})
    if not isinstance(agent, dict):
        raise ConfigError("agent", f"is {agent!r}", "Write a table.")
    names = {name: agent[name] for name in FleetNames.__struct_fields__ if name in agent}
    connection = checked({"agent": names, **sections}, FleetConnection)
    check_servers(connection.nats.servers, "nats.servers", ("nats", "tls"))
    check_servers(connection.etcd.endpoints, "etcd.endpoints", ("http", "https"))
    check_logins(connection.nats, connection.etcd)
    if servers.get("nats") is None:  # a server of --nats nats://... gets the certificate if it requires TLS
        check_certificate_use(connection.nats)
    return connection


def is_connection(path: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if a file is an operator's: it has nothing but what ``load_connection`` reads.

    Another one is an agent's if it has models or, as an agent's file need not have them, if a variable has.

    Raises:
        ConfigError: The file cannot be read, or is nobody's: it has other keys, and there are no models.
    """
    text = read_text(path)
    table = parse_table(text, str(path))
    foreign = list(_foreign_keys(table))
    if "models" in table or (foreign and f"{ENVIRONMENT_PREFIX}MODELS" in map(str.upper, environ)):
        return False
    ConfigError.raise_all(map(FileLines(str(path), key_lines(text)).located, foreign))
    return True


def _foreign_keys(table: Mapping[str, Any]) -> Iterator[ConfigError]:
    known = {"": (*FleetConnection.__struct_fields__, "models"), "agent.": FleetNames.__struct_fields__}
    agent = table.get("agent")
    for section, keys in (("", table), ("agent.", agent if isinstance(agent, dict) else ())):
        for key in keys:
            if key not in known[section]:
                problem = "is not a known key in a file without [[models]]"
                yield ConfigError(f"{section}{key}", problem, did_you_mean(key, known[section]))


def _is_read(variable: str, servers: Collection[str]) -> bool:
    """Return True if a variable sets what is read here; others are those of agents on this host."""
    section, *path = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
    return section in servers or (section == "agent" and (not path or path[0] in ("", *FleetNames.__struct_fields__)))
