"""Options of commands that run beside an agent: its servers and the names that all programs of a fleet share."""

import argparse
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from loadline.adapters.etcd_gateway import check_endpoint
from loadline.cli.option_types import name, server_url, subject_root
from loadline.servers import EtcdKnobs, NatsKnobs
from loadline.toml.connection import load_connection


class ConnectionOptions(Struct, frozen=True):
    """Servers, logins and names."""

    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()
    root: str = "loadline"
    namespace: str = "default"


def connection_arguments(parser: argparse.ArgumentParser, config_help: str) -> None:
    """Add the options of a connection.

    Args:
        parser: Parser of the command.
        config_help: Help of ``--config``, which says what the command reads there.
    """
    add = parser.add_argument_group("connection").add_argument
    add("--config", type=Path, metavar="FILE", help=config_help)
    add(
        "--nats",
        type=server_url("nats", "tls"),
        metavar="URL",
        help="NATS server (default: nats://127.0.0.1:4222)",
    )
    add(
        "--etcd",
        type=server_url("http", "https"),
        metavar="URL",
        help="etcd server (default: http://127.0.0.1:2379)",
    )
    add("--root", type=subject_root, help="prefix of every NATS subject (default: loadline)")
    add("--namespace", type=name, help="etcd keys are under /loadline/<namespace>/ (default: default)")


def configured_connection(path: Path | None) -> ConnectionOptions:
    """Return the connection of a configuration file, if there is one, and of the environment.

    Raises:
        ConfigError: The file cannot be read, or a value in it or in a variable is invalid.
    """
    found = load_connection(path)
    return ConnectionOptions(found.nats, found.etcd, found.agent.root, found.agent.namespace)


def connection_of(options: argparse.Namespace, configured: ConnectionOptions) -> ConnectionOptions:
    """Return ``configured`` with what the options set instead.

    Raises:
        ConfigError: ``--etcd`` is plain http to another host, and the configuration does not permit that.
    """
    nats, etcd = configured.nats, configured.etcd
    if options.nats:
        nats = replace(nats, servers=(options.nats,))
    if options.etcd:
        check_endpoint("--etcd", options.etcd, insecure=etcd.insecure)
        etcd = replace(etcd, endpoints=(options.etcd,))
    return ConnectionOptions(nats, etcd, options.root or configured.root, options.namespace or configured.namespace)
