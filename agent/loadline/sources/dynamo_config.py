"""Configuration of the source of NVIDIA Dynamo's forward-pass metrics."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.servers import EtcdKnobs, NatsKnobs, check_certificate_use, check_logins, check_servers
from loadline.sources.config import RegisteringKnobs, WorkerKnobs, read, require_pools


class DynamoPoolKnobs(WorkerKnobs, frozen=True, kw_only=True):
    """Workers of one Dynamo component."""

    component: Annotated[Name, Meta(description="Dynamo component of the workers.")]
    dynamo_namespace: Annotated[Name, Meta(description="Dynamo namespace of the workers.")] = "dynamo"
    endpoints: Annotated[
        tuple[str, ...],
        Meta(
            max_length=4096,
            description="ZeroMQ addresses of engines or relays, such as tcp://10.0.0.7:20380; none with discovery.",
        ),
    ] = ()


class DynamoKnobs(RegisteringKnobs, frozen=True, kw_only=True):
    """Configuration file of `loadline source dynamo`."""

    pools: Annotated[tuple[DynamoPoolKnobs, ...], Meta(min_length=1, max_length=64)]
    plane: Annotated[Literal["zmq", "nats"], Meta(description="Dynamo's event plane, DYN_EVENT_PLANE there.")] = "zmq"
    brokers: Annotated[
        tuple[str, ...], Meta(max_length=16, description="ZeroMQ XPUB addresses of Dynamo's brokers.")
    ] = ()
    discovery: Annotated[EtcdKnobs | None, Meta(description="Dynamo's etcd: ZeroMQ publishers are found there.")] = None
    dynamo_nats: Annotated[NatsKnobs, Meta(description="Dynamo's NATS, for the plane nats.")] = NatsKnobs()


def read_dynamo(path: Path) -> DynamoKnobs:
    """Read the configuration.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    return read(DynamoKnobs, path, _checked)


def _checked(knobs: DynamoKnobs) -> DynamoKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    require_pools([(pool.model, pool.name) for pool in knobs.pools])
    scopes = [(pool.dynamo_namespace, pool.component) for pool in knobs.pools]
    for index, scope in enumerate(scopes):
        if scope in scopes[:index]:
            place = f"pools[{index}].component"
            raise ConfigError(place, f"is {scope[1]} of {scope[0]}, as of another pool", "Give each pool its own.")
    check_servers(knobs.dynamo_nats.servers, "dynamo_nats.servers", ("nats", "tls"))
    if knobs.discovery is not None:
        check_servers(knobs.discovery.endpoints, "discovery.endpoints", ("http", "https"))
    check_logins(knobs.dynamo_nats, knobs.discovery or EtcdKnobs(), ("dynamo_nats", "discovery"))
    check_certificate_use(knobs.dynamo_nats, "dynamo_nats")
    for place, endpoints in [
        ("brokers", knobs.brokers),
        *((f"pools[{index}].endpoints", pool.endpoints) for index, pool in enumerate(knobs.pools)),
    ]:
        check_servers(endpoints, place, ("tcp", "ipc"))
    found = knobs.brokers or knobs.discovery or any(pool.endpoints for pool in knobs.pools)
    if knobs.plane == "zmq" and not found:
        remedy = "Give endpoints of a pool, brokers, or Dynamo's etcd in [discovery]."
        raise ConfigError("plane", "is zmq, and no publisher is named", remedy)
    return knobs
