"""Options of commands that run beside an agent: its servers and the names that all programs of a fleet share."""

import argparse
from pathlib import Path

from msgspec import Struct

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


def connection_of(options: argparse.Namespace) -> ConnectionOptions:
    """Return the connection of the options, of the environment, and of a configuration file if there is one.

    Raises:
        ConfigError: The file cannot be read, or a value that is used is invalid.
    """
    found = load_connection(options.config, servers={"nats": options.nats, "etcd": options.etcd})
    names = found.agent
    return ConnectionOptions(found.nats, found.etcd, options.root or names.root, options.namespace or names.namespace)
