"""Options of a gateway."""

from collections.abc import Mapping

from msgspec import Struct

from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.engines.profile import ObjectiveKnobs


class GatewayOptions(Struct, frozen=True):
    """Models that a gateway serves, its servers, and its limits."""

    objectives: Mapping[str, ObjectiveKnobs | None]
    """Served models, with the objectives to report attainment of; None: it is not reported."""
    host: str = "127.0.0.1"
    port: int = 8080
    name: str = "gateway"
    """Name in traffic reports; each gateway needs its own."""
    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()
    root: str = "loadline"
    namespace: str = "default"
    held_max: int = 1_000
    """Requests of a model that wait for a worker; further ones are refused."""
    hold_s: float = 300.0
    """Time that a request waits for a worker: engines take minutes to load a model."""
    body_bytes_max: int = 32 * 1024 * 1024
    """Largest body of a request; images are part of it."""
